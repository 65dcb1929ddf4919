"""The values that flow from stage to stage, and how they are written."""
