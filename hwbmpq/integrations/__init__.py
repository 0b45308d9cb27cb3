"""``BitAllocator`` inside the training loops of other packages, which are optional: import the module you need."""
