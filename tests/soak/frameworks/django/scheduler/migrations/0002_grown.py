"""Changes of each kind: columns, constraints, indexes, rows."""

from django.db import migrations, models


def fill(apps, editor):
    for name in ["Job", "Note"]:
        apps.get_model("scheduler", name).objects.create(name="first", count=1)


def empty(apps, editor):
    for name in ["Job", "Note"]:
        apps.get_model("scheduler", name).objects.all().delete()


def grow(model):
    parent = models.ForeignKey(f"scheduler.{model}", null=True, on_delete=models.CASCADE)
    return [
        migrations.AddField(model, "at", models.DateTimeField(null=True)),
        migrations.AlterField(model, "count", models.IntegerField(default=0)),
        migrations.AlterField(model, "name", models.CharField(max_length=50, unique=True)),
        migrations.AddIndex(model, models.Index(fields=["count"], name=f"{model.lower()}_count")),
        migrations.AddField(model, "parent", parent),
        migrations.RemoveIndex(model, f"{model.lower()}_count"),
        migrations.AddField(model, "passing", models.TextField(default="")),
        migrations.RemoveField(model, "passing"),
    ]


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0001_initial")]
    operations = [migrations.RunPython(fill, empty), *grow("Note"), *grow("Job")]
