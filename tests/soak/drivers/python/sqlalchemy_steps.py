"""SQLAlchemy's sessions with psycopg. Steps that SQLAlchemy does not support use psycopg through SQLAlchemy."""

import psycopg
import sqlalchemy
import steps
from sqlalchemy import create_engine, event, func, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    payload: Mapped[str | None]


class SqlAlchemy:
    def version(self):
        return sqlalchemy.__version__

    def token(self):
        self._connect(1)
        self.process = self.session.scalar(text("SELECT pg_backend_pid()"))
        return self.session.scalar(text("SELECT current_setting('lease.fence')"))

    def writes(self):
        self.session.add(Job(id=1, payload="one"))
        self.session.commit()
        return self._payload(1)

    def prepares(self):
        self._insert_prepared(range(100, 110))
        assert self.session.scalar(text("SELECT count(*) FROM pg_prepared_statements")) > 0
        return self._sum(100, 109)

    def batches(self):
        self._insert_as_a_batch(range(200, 210))
        return self._sum(200, 209)

    def copies(self):
        self._copy(range(1000, 2000))
        with self._psycopg().cursor().copy(
            "COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT"
        ) as copy:
            return sum(int(number) for (number,) in copy.rows())

    def scrolls(self):
        query = select(Job.id).where(Job.id.between(1000, 1999)).execution_options(yield_per=70)
        return sum(self.session.scalars(query))

    def carries_large_values(self):
        self.session.add(Job(id=2, payload=steps.LARGE))
        self.session.commit()
        return steps.whether_large(self._payload(2))

    def listens(self):
        self.session.execute(text("LISTEN ticks"))
        self.session.commit()
        with steps.another_session() as session:
            session.execute("NOTIFY ticks, 'tick'")
        return next(self._psycopg().notifies(timeout=60)).payload

    def cancels(self):
        steps.once_asleep(self._psycopg().cancel_safe)
        try:
            self.session.execute(text("SELECT pg_sleep(600)"))
        except DBAPIError as error:
            assert error.orig.sqlstate == "57014"
            self.session.rollback()
            return self.session.scalar(text("SELECT 'cancelled'"))

    def is_refused(self):
        steps.take_over(2)
        self.session.add(Job(id=3))
        error = self._error(self.session.commit)
        self.session.rollback()
        return error

    def refusals(self):
        ways = (self._insert_prepared, self._insert_as_a_batch, self._copy)
        return " ".join(self._sqlstate(way, range(300, 310)) for way in ways)

    def aborts(self):
        self._error(lambda: self.session.execute(text("INSERT INTO jobs VALUES (3)")))
        try:
            self.session.execute(text("SELECT 'refused'"))
        except DBAPIError as error:
            assert error.orig.sqlstate == "25P02"
            self.session.rollback()
            return self.session.scalar(text("SELECT 'on'"))

    def goes_on(self):
        assert self.session.scalar(text("SELECT pg_backend_pid()")) == self.process
        self.session.execute(text("SET lease.fence = 2"))
        self.session.add(Job(id=3, payload="three"))
        self.session.commit()
        return self._payload(3)

    def is_cut_off(self):
        self.session.add(Job(id=4))
        self.session.flush()
        steps.take_over(3)
        return self._error(lambda: self.session.execute(text("SELECT 'on'")))

    def is_interrupted(self):
        self._connect(3)
        self.session.add(Job(id=4))
        self.session.flush()
        steps.once_asleep(lambda: steps.take_over(4))
        return self._error(lambda: self.session.execute(text("SELECT pg_sleep(600)")))

    def starts_again(self):
        self._connect(4)
        self.session.add(Job(id=4, payload="four"))
        self.session.commit()
        return self._payload(4)

    def _connect(self, token):
        url = sqlalchemy.URL.create(
            "postgresql+psycopg",
            host=steps.ADDRESS["host"],
            port=steps.ADDRESS["port"],
            username=steps.ADDRESS["user"],
            database=steps.DATABASE,
        )
        engine = create_engine(url, connect_args={"options": f"-c lease.fence={token}"})

        # Like `fence_engine` of clients/python.
        @event.listens_for(engine, "handle_error")
        def give_up(context):
            error = context.original_exception
            if getattr(error, "sqlstate", None) == "LF001" and "outcome=" in str(error):
                context.is_disconnect = True

        self.session = Session(engine)

    def _psycopg(self):
        return self.session.connection().connection.driver_connection

    def _insert_prepared(self, numbers):
        for number in numbers:
            self.session.execute(insert(Job).values(id=number))
            self.session.commit()

    def _insert_as_a_batch(self, numbers):
        self.session.add_all(Job(id=number) for number in numbers)
        self.session.commit()

    def _copy(self, numbers):
        with self._psycopg().cursor().copy("COPY jobs (id) FROM STDIN") as copy:
            for number in numbers:
                copy.write_row((number,))
        self.session.commit()

    def _sqlstate(self, action, *arguments):
        try:
            action(*arguments)
        except DBAPIError as error:
            return error.orig.sqlstate
        except psycopg.Error as error:
            return error.sqlstate
        finally:
            self.session.rollback()

    def _payload(self, number):
        return self.session.scalar(select(Job.payload).where(Job.id == number))

    def _sum(self, first, last):
        return self.session.scalar(select(func.sum(Job.id)).where(Job.id.between(first, last)))

    def _error(self, action):
        try:
            action()
        except DBAPIError as error:
            return steps.shown(error, error.orig)


steps.run(SqlAlchemy())
