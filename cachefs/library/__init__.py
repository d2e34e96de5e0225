"""Reading files from Python without the kernel's mount: names, bytes, batches. Client code only."""
