# Uses two equal tables through Active Record, of which the policy fences `jobs`. Prints `TABLE STEP: RESULT` for each
# step, or the SQLSTATE of its error as the result. FRAMEWORK_TOKEN is the fencing token.

require "active_record"
require "active_record/fixtures"
require "pg"
require "stringio"

token = ENV["FRAMEWORK_TOKEN"]
SETTINGS = {
  adapter: "postgresql", host: ENV["PGHOST"], port: ENV["PGPORT"], username: "postgres", database: "app", pool: 2,
  min_messages: "warning", prepared_statements: ARGV[0] == "prepared", advisory_locks: true,
  variables: {"statement_timeout" => "60s", **(token ? {"lease.fence" => token} : {})}
}
ActiveRecord::Base.default_timezone = :utc

class Job < ActiveRecord::Base
  belongs_to :parent, class_name: "Job", optional: true
end

class Note < ActiveRecord::Base
  belongs_to :parent, class_name: "Note", optional: true
end

# Migrations of both tables, each with its own version, so that one can fail without the other.
def migration(table)
  Class.new(ActiveRecord::Migration[6.1]) do
    define_method(:change) do
      change_table table do |t|
        t.string :passing, default: ""
        t.index :passing
      end
      remove_index table, :passing
      change_column_null table, :count, false, 0
      remove_column table, :passing, :string, default: ""
      add_foreign_key table, table, column: :parent_id
    end
  end
end

def migrate(table, direction)
  version = {"notes" => 1, "jobs" => 2}.fetch(table)
  change = migration(table).new("Change#{table}", version)
  schema = ActiveRecord::Base.connection.schema_migration
  ActiveRecord::Migrator.new(direction, [change], schema, direction == :up ? version : 0).migrate
end

def new_tables
  ActiveRecord::Schema.verbose = false
  ActiveRecord::Schema.define do
    drop_table :schema_migrations, if_exists: true
    %w[notes jobs].each do |table|
      drop_table table, if_exists: true
      create_table table do |t|
        t.string :name, index: {unique: true}
        t.integer :count, default: 0
        t.datetime :at
        t.bigint :parent_id
        t.integer :lock_version, default: 0
      end
    end
  end
end

STEPS = {
  inserts_many: ->(model) {
    model.insert_all((1..3000).map { |n| {name: "many #{n}", count: n} })
    model.count
  },
  upserts: ->(model) {
    model.upsert_all((1..10).map { |n| {name: "many #{n}", count: -n} }, unique_by: :name)
    [model.where("count < 0").sum(:count), model.create_or_find_by!(name: "many 1").count]
  },
  saves: ->(model) {
    row = model.create!(name: "saved", at: Time.utc(2030, 1, 1, 12))
    row.update!(count: 2)
    row.increment!(:count)
    [row.reload.count, row.at, row.lock_version]
  },
  nests_transactions: ->(model) {
    model.transaction do
      model.create!(name: "outer")
      begin
        model.transaction(requires_new: true) do
          model.create!(name: "inner")
          model.create!(name: "outer")
        end
      rescue ActiveRecord::RecordNotUnique
        model.create!(name: "after")
      end
      model.transaction(requires_new: true) { raise ActiveRecord::Rollback }
    end
    names(model, "outer", "inner", "after")
  },
  rolls_back: ->(model) {
    model.transaction do
      model.create!(name: "lost")
      raise ActiveRecord::Rollback
    end
    names(model, "lost")
  },
  serialises: ->(model) {
    model.transaction(isolation: :serializable) do
      model.create!(name: "serialised")
      model.connection.select_value("SHOW transaction_isolation")
    end
  },
  reads_in_batches: ->(model) { model.find_each(batch_size: 500).count == model.count },
  locks_rows: ->(model) {
    row = model.create!(name: "locked")
    row.with_lock { row.update!(count: 7) }
    model.transaction { model.lock("FOR UPDATE SKIP LOCKED").find_by!(name: "locked").touch(:at) }
    row.reload.count
  },
  runs_raw_sql: ->(model) {
    row = model.connection.exec_query("UPDATE #{model.table_name} SET count = count + 1 WHERE id = $1 RETURNING count",
      "SQL", [ActiveRecord::Relation::QueryAttribute.new("id", model.create!(name: "raw").id, ActiveRecord::Type::Integer.new)])
    [row.rows, model.connection.select_value("SHOW statement_timeout")]
  },
  copies: ->(model) {
    raw = model.connection.raw_connection
    raw.copy_data("COPY #{model.table_name} (name) FROM STDIN") { 1000.times { |n| raw.put_copy_data("copied #{n}\n") } }
    model.where("name LIKE 'copied %'").count
  },
  loads_fixtures: ->(model) {
    rows = {"one" => {"id" => 1_000_001, "name" => "fixture", "parent_id" => 1_000_002}}
    model.connection.insert_fixtures_set({model.table_name => rows.values}, [model.table_name])
    model.connection.reset_pk_sequence!(model.table_name)
    model.count
  },
  is_reset: ->(model) {
    model.connection.reset!
    model.connection.truncate_tables(model.table_name)
    [model.count, model.connection.select_value("SHOW statement_timeout")]
  },
  migrates: ->(model) {
    migrate(model.table_name, :up)
    migrate(model.table_name, :down)
    model.connection.foreign_keys(model.table_name).size
  },
  reconnects: ->(model) {
    model.connection.reconnect!
    model.create!(name: "again")
    model.count
  },
  dumps_its_schema: ->(model) {
    dump = StringIO.new
    ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, dump)
    dump.string.lines.grep(/create_table/).map(&:strip)
  }
}

def names(model, *some) = model.where(name: some).order(:name).pluck(:name)

def sqlstate(error)
  error = error.cause until error.nil? || error.is_a?(PG::Error)
  error&.result&.error_field(PG::Result::PG_DIAG_SQLSTATE)
end

ActiveRecord::Migration.verbose = false
$stdout.sync = true

# Creates the tables directly on the server, as their owner.
ActiveRecord::Base.establish_connection(ENV["FRAMEWORK_SCHEMA_URL"])
new_tables
ActiveRecord::Base.establish_connection(SETTINGS)
[Note, Job].each do |model|
  STEPS.each do |name, step|
    result =
      begin
        step.call(model).inspect
      rescue => error
        sqlstate(error) or raise
      end
    puts "#{model.table_name} #{name}: #{result}"
  end
end
