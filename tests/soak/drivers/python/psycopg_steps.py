"""psycopg 3."""

import psycopg
import steps


class Psycopg:
    def version(self):
        return psycopg.__version__

    def token(self):
        self._connect(1)
        return self._value("SELECT current_setting('lease.fence')")

    def writes(self):
        self.connection.execute("INSERT INTO jobs VALUES (1, 'one')")
        return self._value("SELECT payload FROM jobs WHERE id = 1")

    def prepares(self):
        self._insert_prepared(range(100, 110))
        return self._value("SELECT sum(id) FROM jobs WHERE id BETWEEN 100 AND 109")

    def batches(self):
        self._insert_as_a_batch(range(200, 210))
        return self._value("SELECT sum(id) FROM jobs WHERE id BETWEEN 200 AND 209")

    def copies(self):
        self._copy(range(1000, 2000))
        with self.connection.cursor().copy("COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT") as copy:
            return sum(int(number) for (number,) in copy.rows())

    def scrolls(self):
        with self.connection.transaction(), self.connection.cursor("scroll") as cursor:
            cursor.itersize = 70
            cursor.execute("SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999")
            return sum(number for (number,) in cursor)

    def carries_large_values(self):
        self.connection.execute("INSERT INTO jobs VALUES (2, %s)", (steps.LARGE,))
        return steps.whether_large(self._value("SELECT payload FROM jobs WHERE id = 2"))

    def listens(self):
        self.connection.execute("LISTEN ticks")
        with steps.another_session() as session:
            session.execute("NOTIFY ticks, 'tick'")
        return next(self.connection.notifies(timeout=60)).payload

    def cancels(self):
        steps.once_asleep(self.connection.cancel_safe)
        try:
            self.connection.execute("SELECT pg_sleep(600)")
        except psycopg.errors.QueryCanceled:
            return self._value("SELECT 'cancelled'")

    def is_refused(self):
        steps.take_over(2)
        return self._error("INSERT INTO jobs VALUES (3)")

    def refusals(self):
        ways = (self._insert_prepared, self._insert_as_a_batch, self._copy)
        return " ".join(self._sqlstate(way, range(300, 310)) for way in ways)

    def aborts(self):
        try:
            with self.connection.transaction():
                self._error("INSERT INTO jobs VALUES (3)")
                self.connection.execute("SELECT 'refused'")
        except psycopg.errors.InFailedSqlTransaction:
            return self._value("SELECT 'on'")

    def goes_on(self):
        self.connection.execute("SET lease.fence = 2")
        self.connection.execute("INSERT INTO jobs VALUES (3, 'three')")
        return self._value("SELECT payload FROM jobs WHERE id = 3")

    def is_cut_off(self):
        self.connection.execute("BEGIN")
        self.connection.execute("INSERT INTO jobs VALUES (4)")
        steps.take_over(3)
        return self._error("SELECT 'on'")

    def is_interrupted(self):
        self._connect(3)
        self.connection.execute("BEGIN")
        self.connection.execute("INSERT INTO jobs VALUES (4)")
        steps.once_asleep(lambda: steps.take_over(4))
        return self._error("SELECT pg_sleep(600)")

    def starts_again(self):
        self._connect(4)
        self.connection.execute("INSERT INTO jobs VALUES (4, 'four')")
        return self._value("SELECT payload FROM jobs WHERE id = 4")

    def _connect(self, token):
        self.connection = psycopg.connect(
            **steps.ADDRESS, dbname=steps.DATABASE, options=f"-c lease.fence={token}", autocommit=True
        )

    def _insert_prepared(self, numbers):
        for number in numbers:
            self.connection.execute("INSERT INTO jobs VALUES (%b)", (number,), prepare=True)

    def _insert_as_a_batch(self, numbers):
        with self.connection.pipeline(), self.connection.transaction():
            for number in numbers:
                self.connection.execute("INSERT INTO jobs VALUES (%s)", (number,))

    def _copy(self, numbers):
        with self.connection.cursor().copy("COPY jobs (id) FROM STDIN") as copy:
            for number in numbers:
                copy.write_row((number,))

    def _sqlstate(self, action, *arguments):
        try:
            action(*arguments)
        except psycopg.Error as error:
            return error.sqlstate

    def _value(self, sql):
        return self.connection.execute(sql).fetchone()[0]

    def _error(self, sql):
        try:
            self.connection.execute(sql)
        except psycopg.Error as error:
            return steps.shown(error, error)


steps.run(Psycopg())
