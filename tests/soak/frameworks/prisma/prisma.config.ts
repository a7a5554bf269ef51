// Prisma Migrate without the program that it would load from a host of its own.
import { createRequire } from 'node:module'
import { PrismaPg } from '@prisma/adapter-pg'
import { defineConfig } from 'prisma/config'

// The adapter knows no columns of the type `name`, which Migrate reads from the catalog.
const Result = createRequire(import.meta.url)('pg/lib/result')
const addFields = Result.prototype.addFields
Result.prototype.addFields = function (fields) {
  fields.forEach((field) => {
    if (field.dataTypeID === 19) field.dataTypeID = 25
  })
  return addFields.call(this, fields)
}

export default defineConfig({
  experimental: { adapter: true },
  engine: 'js',
  schema: 'schema.prisma',
  migrations: { path: 'migrations' },
  adapter: async () => new PrismaPg({ connectionString: process.env.DATABASE_URL }),
})
