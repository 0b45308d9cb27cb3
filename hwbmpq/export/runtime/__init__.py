"""Running exported files: answers, comparisons and timings."""
