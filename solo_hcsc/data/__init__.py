"""Images: files, folders, lists, data sets as they are distributed, loaders."""
