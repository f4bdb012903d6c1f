"""The page of the admin port: files as they are, no build step, nothing from anywhere else (F9)."""
