"""The engine as the front end sees it: its process, our end of the pipe, a stream a request."""
