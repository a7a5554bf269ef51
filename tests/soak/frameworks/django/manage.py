"""A Django project in one file. FRAMEWORK_TOKEN is the fencing token. With FRAMEWORK_POOL, the project uses psycopg's pool."""

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line

token = os.environ.get("FRAMEWORK_TOKEN")
pooled = "FRAMEWORK_POOL" in os.environ

options = {"options": f"-c lease.fence={token}"} if token else {}
if pooled:
    options |= {"pool": {"min_size": 1, "max_size": 2}, "server_side_binding": True}

if __name__ == "__main__":
    settings.configure(
        INSTALLED_APPS=["scheduler"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": os.environ["PGHOST"],
                "PORT": os.environ["PGPORT"],
                "USER": "postgres",
                "NAME": "app",
                "TIME_ZONE": "Europe/Berlin",
                "CONN_MAX_AGE": 0 if pooled else 600,
                "CONN_HEALTH_CHECKS": True,
                "OPTIONS": options,
            }
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    execute_from_command_line(sys.argv)
