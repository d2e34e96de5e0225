"""CacheFS for PyTorch: manifests, data sets, samplers whose order is announced, a loader that
resumes.

    import cachefs.torch as ct

    manifest = ct.Manifest("/mnt/imagenet/train")
    sampler = ct.OrderSampler(manifest, seed=7, rank=rank, world_size=world_size)
    for batch in ct.DataLoader(ct.Files(manifest, decode), sampler=sampler, batch_size=256): ...

Only `DataLoader` imports torch.
"""

from cachefs.trainers.batch_shares import Locality
from cachefs.trainers.files import Files
from cachefs.trainers.loader import DataLoader
from cachefs.trainers.manifest import Manifest
from cachefs.trainers.sampler import OrderSampler

__all__ = ["DataLoader", "Files", "Locality", "Manifest", "OrderSampler"]
