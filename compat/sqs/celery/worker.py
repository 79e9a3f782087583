"""Module that the worker's process loads: the application of client.py."""

import os

from client import app

app = app(*os.environ["COMPAT_CELERY"].split(" "))
