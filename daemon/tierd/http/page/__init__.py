"""The status page, on the public listener to look at, on the admin listener with its buttons."""

from tierd.http.page.routes import PageRoutes, is_page_file

__all__ = ["PageRoutes", "is_page_file"]
