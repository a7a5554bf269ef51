// Prisma Migrate without the engine that it would download.
import { createRequire } from 'node:module'
import { PrismaPg } from '@prisma/adapter-pg'
import { defineConfig } from 'prisma/config'

// The adapter does not support columns of type `name`, which Migrate reads from the catalog.
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
