"""Two equal tables. The policy fences the table of Job."""

from django.db import models


class Record(models.Model):
    name = models.CharField(max_length=50, unique=True)
    count = models.IntegerField(default=0)
    at = models.DateTimeField(null=True)
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE)

    class Meta:
        abstract = True


class Job(Record):
    class Meta:
        db_table = "jobs"


class Note(Record):
    class Meta:
        db_table = "notes"
