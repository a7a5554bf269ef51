"""Uses two equal tables through SQLAlchemy and the given driver. The policy fences `jobs`. Prints `TABLE STEP: RESULT` for
each step, or the SQLSTATE of its error as the result. FRAMEWORK_TOKEN is the fencing token."""

import asyncio
import os
import sys

from sqlalchemy import ForeignKey, Identity, create_engine, event, func, inspect, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

driver = sys.argv[1]
token = os.environ.get("FRAMEWORK_TOKEN")
url = f"postgresql+{driver}://postgres@{os.environ['PGHOST']}:{os.environ['PGPORT']}/app"


class Base(DeclarativeBase):
    pass


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    count: Mapped[int] = mapped_column(default=0)
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))
    children: Mapped[list["Job"]] = relationship(cascade="all")


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    count: Mapped[int] = mapped_column(default=0)
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("notes.id"))
    children: Mapped[list["Note"]] = relationship(cascade="all")


def token_at_connect(engine):
    """Sets the token when a connection is opened, in a committed transaction."""

    @event.listens_for(engine, "connect")
    def set_token(connection, _):
        if token:
            cursor = connection.cursor()
            cursor.execute(f"SET lease.fence = {token}")
            cursor.close()
            connection.commit()


def token_at_checkout(engine):
    """Resets connections when they return to the pool, and sets the token at each checkout."""

    @event.listens_for(engine, "reset")
    def discard(connection, _, state):
        if not state.terminate_only:
            connection.rollback()
            in_autocommit(connection, "DISCARD ALL")

    @event.listens_for(engine, "checkout")
    def set_token(connection, *_):
        cursor = connection.cursor()
        cursor.execute("SELECT coalesce(current_setting('lease.fence', true), '')")
        assert cursor.fetchone() == ("",), "DISCARD ALL has left the token of before"
        cursor.close()
        connection.rollback()
        if token:
            in_autocommit(connection, f"SET lease.fence = {token}")


def in_autocommit(connection, statement):
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(statement)
    cursor.close()
    connection.autocommit = False


def inserts_many(engine, model):
    with Session(engine) as session, session.begin():
        returned = session.scalars(insert(model).returning(model.id), [{"name": f"many {n}"} for n in range(3000)])
        return len(returned.all())


def executes_many(engine, model):
    with engine.begin() as connection:
        rows = [{"name": f"executed {n}", "count": n} for n in range(200)]
        connection.execute(insert(model.__table__), rows)
        changed = text(f"UPDATE {model.__tablename__} SET count = count + 1 WHERE name = :name")
        connection.execute(changed, [{"name": row["name"]} for row in rows])
        return connection.scalar(select(func.sum(model.count)))


def upserts(engine, model):
    with Session(engine) as session, session.begin():
        statement = upsert(model).values(name="one", count=1)
        statement = statement.on_conflict_do_update(index_elements=["name"], set_={"count": model.count + 1})
        for _ in range(3):
            session.execute(statement)
        return session.scalar(select(model.count).where(model.name == "one"))


def uses_a_unit_of_work(engine, model):
    with Session(engine) as session:
        session.add(model(name="parent", children=[model(name=f"child {n}") for n in range(5)]))
        session.commit()
        parent = session.scalars(select(model).filter_by(name="parent")).one()
        parent.count = 5
        session.flush()
        session.delete(parent)
        session.commit()
        return names(session, model, "parent", "child 1")


def nests_transactions(engine, model):
    with Session(engine) as session, session.begin():
        session.add(model(name="outer"))
        try:
            with session.begin_nested():
                session.add(model(name="inner"))
                session.add(model(name="outer"))
        except DBAPIError as error:
            if sqlstate(error) != "23505":
                raise
        with session.begin_nested():
            session.add(model(name="after"))
    with Session(engine) as session:
        return names(session, model, "outer", "inner", "after")


def rolls_back(engine, model):
    with Session(engine) as session:
        session.add(model(name="lost"))
        session.flush()
        session.rollback()
        return names(session, model, "lost")


def serialises(engine, model):
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection, connection.begin():
        connection.execute(update(model).where(model.name == "one").values(count=100))
        shown = connection.scalar(text("SHOW transaction_isolation"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(update(model).where(model.name == "one").values(count=101))
        return shown, connection.scalar(text("SHOW transaction_isolation"))


def streams(engine, model):
    with Session(engine) as session:
        by_rows = sum(1 for _ in session.scalars(select(model).execution_options(yield_per=500)))
    with engine.connect() as connection:
        rows = connection.execution_options(stream_results=True, max_row_buffer=100).execute(select(model.id))
        return by_rows == sum(1 for _ in rows)


def locks_rows(engine, model):
    with Session(engine) as session, session.begin():
        session.add(model(name="locked"))
        session.flush()
        row = session.scalars(select(model).filter_by(name="locked").with_for_update(skip_locked=True)).one()
        row.count = 7
    with Session(engine) as session:
        return session.scalar(select(model.count).filter_by(name="locked"))


def copies(engine, model):
    raw = engine.raw_connection()
    try:
        copy_in(raw, f"COPY {model.__tablename__} (name, count) FROM STDIN", [(f"copied {n}", n) for n in range(1000)])
        raw.commit()
    finally:
        raw.close()
    with Session(engine) as session:
        return session.scalar(select(func.count()).where(model.name.like("copied %")))


def reflects(engine, model):
    inspector = inspect(engine)
    table = model.__tablename__
    return len(inspector.get_columns(table)), len(inspector.get_foreign_keys(table)), inspector.has_table(table)


def goes_on_after_an_error(engine, model):
    with Session(engine) as session:
        session.add(model(name="goes on"))
        error = None
        try:
            session.commit()
        except DBAPIError as caught:
            error = sqlstate(caught), caught.connection_invalidated
            session.rollback()
        return error, session.scalar(text("SELECT 'on'"))


def alters(engine, model):
    table = model.__tablename__
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN passing text DEFAULT ''"))
        connection.execute(text(f"CREATE INDEX passing_{table} ON {table} (passing)"))
        connection.execute(text(f"ALTER TABLE {table} DROP COLUMN passing"))
        return len(inspect(connection).get_columns(table))


def copy_in(connection, statement, rows):
    lines = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    if driver == "psycopg2":
        from io import StringIO

        connection.cursor().copy_expert(statement, StringIO(lines))
    else:
        with connection.cursor().copy(statement) as copy:
            copy.write(lines)


async def asynchronous_steps():
    """Steps for asyncpg, which needs an AsyncEngine. COPY uses the driver directly."""
    settings = {"server_settings": {"lease.fence": token}} if token else {}
    engine = create_async_engine(url, pool_size=2, pool_pre_ping=True, connect_args=settings)

    async def inserts_many(model):
        async with AsyncSession(engine) as session, session.begin():
            rows = [{"name": f"many {n}"} for n in range(3000)]
            return len((await session.scalars(insert(model).returning(model.id), rows)).all())

    async def nests_transactions(model):
        async with AsyncSession(engine) as session, session.begin():
            session.add(model(name="outer"))
            try:
                async with session.begin_nested():
                    session.add_all([model(name="inner"), model(name="outer")])
            except DBAPIError as error:
                if sqlstate(error) != "23505":
                    raise
        async with AsyncSession(engine) as session:
            found = await session.scalars(select(model.name).where(model.name.in_(["outer", "inner"])))
            return found.all()

    async def streams(model):
        async with AsyncSession(engine) as session:
            rows = await session.stream_scalars(select(model).execution_options(yield_per=500))
            by_rows = len([row async for row in rows])
            return by_rows == await session.scalar(select(func.count()).select_from(model))

    async def serialises(model):
        serializable = engine.execution_options(isolation_level="SERIALIZABLE")
        async with serializable.begin() as connection:
            await connection.execute(update(model).values(count=model.count + 1))
            return await connection.scalar(text("SHOW transaction_isolation"))

    async def copies(model):
        async with engine.begin() as connection:
            raw = (await connection.get_raw_connection()).driver_connection
            rows = [(f"copied {n}", n) for n in range(1000)]
            return await raw.copy_records_to_table(model.__tablename__, records=rows, columns=["name", "count"])

    async def works_concurrently(model):
        async def one(n):
            async with AsyncSession(engine) as session, session.begin():
                session.add(model(name=f"concurrent {n}"))

        await asyncio.gather(*(one(n) for n in range(10)))
        return "done"

    async def reflects(model):
        async with engine.connect() as connection:
            return await connection.run_sync(lambda sync: len(inspect(sync).get_columns(model.__tablename__)))

    steps = [inserts_many, nests_transactions, streams, serialises, copies, works_concurrently, reflects]
    for model in [Note, Job]:
        for step in steps:
            try:
                result = await step(model)
            except DBAPIError as error:
                result = sqlstate(error)
            except Exception as error:  # An error of the driver, where a step bypasses SQLAlchemy.
                result = error.sqlstate
            report(model, step, result)
    await engine.dispose()


STEPS = [
    inserts_many, executes_many, upserts, uses_a_unit_of_work, nests_transactions, rolls_back, serialises, streams,
    locks_rows, copies, reflects, goes_on_after_an_error, alters,
]


def steps_with(engine):
    for model in [Note, Job]:
        for step in STEPS:
            try:
                result = step(engine, model)
            except DBAPIError as error:
                result = sqlstate(error)
            except Exception as error:
                result = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or repr(error)
            report(model, step, result)
    engine.dispose()


def report(model, step, result):
    print(f"{model.__tablename__} {step.__name__}: {result}", flush=True)


def sqlstate(error):
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


def names(session, model, *some):
    return sorted(session.scalars(select(model.name).where(model.name.in_(some))))


def new_tables():
    """Creates the tables directly on the server, as the superuser of the tests."""
    engine = create_engine(os.environ["FRAMEWORK_SCHEMA_URL"])
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    engine.dispose()


if driver == "asyncpg":
    new_tables()
    asyncio.run(asynchronous_steps())
else:
    for token_at in [token_at_connect, token_at_checkout]:
        new_tables()
        engine = create_engine(url, pool_size=2, pool_pre_ping=True, **(
            {"pool_reset_on_return": None} if token_at is token_at_checkout else {}
        ))
        token_at(engine)
        steps_with(engine)
