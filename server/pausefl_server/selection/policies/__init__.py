"""The selection policies, one file each, named after what experiments call them."""
