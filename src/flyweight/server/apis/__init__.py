"""The APIs: for each the types of its bodies, its handlers and its replies."""
