"""The adapter of HDFS, over the library hdfs-native."""
