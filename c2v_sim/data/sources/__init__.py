"""One file per data set, and what they share: download, image files, folders of images."""
