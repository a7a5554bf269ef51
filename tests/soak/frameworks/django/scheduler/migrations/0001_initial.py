"""The tables of the first version of the project."""

from django.db import migrations, models


def table(name, db_table):
    fields = [
        ("id", models.BigAutoField(primary_key=True)),
        ("name", models.CharField(max_length=50)),
        ("count", models.IntegerField(null=True)),
    ]
    return migrations.CreateModel(name, fields, options={"db_table": db_table})


class Migration(migrations.Migration):
    operations = [table("Job", "jobs"), table("Note", "notes")]
