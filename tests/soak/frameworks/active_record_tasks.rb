# Creates, fills, purges and drops a database like `rails db:test:prepare` and `db:drop`, and prints its tables.

require "active_record"

ActiveRecord::Schema.verbose = false
tasks = ActiveRecord::Tasks::DatabaseTasks
tasks.env = "test"
tasks.root = Dir.pwd
tasks.db_dir = Dir.pwd
settings = {
  "adapter" => "postgresql", "host" => ENV["PGHOST"], "port" => ENV["PGPORT"], "username" => "postgres",
  "database" => "shop_test"
}
ActiveRecord::Base.configurations = {"test" => settings}
configuration = ActiveRecord::Base.configurations.configs_for(env_name: "test").first

def fill_and_print
  ActiveRecord::Base.establish_connection(:test)
  # Like schema.rb.
  ActiveRecord::Schema.define(version: 1) do
    create_table(:notes, force: :cascade) { |t| t.string :name }
  end
  ActiveRecord::Base.connection.execute("INSERT INTO notes (name) VALUES ('one')")
  puts ActiveRecord::Base.connection.tables - ["schema_migrations", "ar_internal_metadata"]
end

$stdout = $stderr
tasks.create(configuration)
$stdout = STDOUT
fill_and_print
tasks.purge(configuration)
fill_and_print
ActiveRecord::Base.connection.disconnect!
$stdout = $stderr
tasks.drop(configuration)
$stdout = STDOUT
ActiveRecord::Base.establish_connection(settings.merge("database" => "postgres"))
puts "dropped" if ActiveRecord::Base.connection.select_value("SELECT 1 FROM pg_database WHERE datname = 'shop_test'").nil?
