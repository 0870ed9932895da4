"""The data of the tasks: files, downloads, data that programs make, and batches of texts."""
