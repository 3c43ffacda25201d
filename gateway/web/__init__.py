"""The browser's half: pages, styles and modules, shipped as they are. No build step, no other host, no dependency."""
