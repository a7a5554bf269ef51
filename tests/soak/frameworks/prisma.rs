//! Prisma Migrate, as docs/use/migrations.md describes it.

use crate::frameworks::world::World;
use crate::support::fenced::value;
use crate::support::guardian::Folder;
use crate::support::{Wire, postgres::SUPERUSER, programs};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const INIT: &str = r#"
    CREATE TYPE "State" AS ENUM ('queued', 'done');
    CREATE TABLE "jobs" ("n" SERIAL NOT NULL, "state" "State" NOT NULL DEFAULT 'queued', CONSTRAINT "jobs_pkey" PRIMARY KEY ("n"));
    CREATE PROCEDURE tidy() LANGUAGE sql AS 'SELECT 1'"#;
const MORE: &str = r#"
    CALL tidy();
    ALTER TYPE "State" ADD VALUE 'failed';
    ALTER TABLE "jobs" ADD COLUMN "note" TEXT;
    UPDATE "jobs" SET "note" = 'none'"#;
const PLAIN: &str = r#"ALTER TABLE "jobs" ADD COLUMN "owner" TEXT"#;

/// A Prisma project with its migrations, and the servers.
struct Project {
    folder: Folder,
    world: World,
}

impl Project {
    fn start() -> Self {
        let folder = Folder::new("prisma");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/soak/frameworks/prisma");
        for file in ["schema.prisma", "prisma.config.ts"] {
            fs::copy(source.join(file), folder.join(file)).unwrap();
        }
        symlink(programs::prisma_folder().join("node_modules"), folder.join("node_modules")).unwrap();
        let world = World::start("databases: [app]\nexempt_roles: [migrator]\n");
        world.postgres.sql("CREATE ROLE migrator SUPERUSER LOGIN");
        fs::create_dir(folder.join("migrations")).unwrap();
        fs::write(folder.join("migrations/migration_lock.toml"), "provider = \"postgresql\"\n").unwrap();
        Self { folder, world }
    }

    fn add(&self, name: &str, script: &str) {
        let folder = self.folder.join("migrations").join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("migration.sql"), script).unwrap();
    }

    /// Runs `prisma migrate`. Returns whether it succeeded, and its output.
    fn migrate(&self, user: &str, token: Option<i64>, arguments: &[&str]) -> (bool, String) {
        let (host, port) = self.world.proxy.address().host_and_port();
        let token = token.map(|token| format!("?options=-c%20lease.fence%3D{token}")).unwrap_or_default();
        let mut command = Command::new("timeout");
        programs::forget_settings(&mut command);
        command.args(["120", "node", "node_modules/prisma/build/index.js", "migrate"]).args(arguments);
        command.env("DATABASE_URL", format!("postgresql://{user}@{host}:{port}/app{token}"));
        command.env("CHECKPOINT_DISABLE", "1").env("NO_COLOR", "1");
        let output = command.current_dir(self.folder.path()).stdin(Stdio::null()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (output.status.success(), said)
    }

    #[track_caller]
    fn is_applied(&self, user: &str, token: Option<i64>) {
        let (success, said) = self.migrate(user, token, &["deploy"]);
        assert!(success, "{said}");
    }

    /// The migration fails with this message and leaves no changes. Marks it as rolled back, so that it can be retried.
    #[track_caller]
    fn is_refused(&self, name: &str, token: Option<i64>, message: &str) {
        let (success, said) = self.migrate(SUPERUSER, token, &["deploy"]);
        assert!(!success && said.contains(&format!("ERROR: {message}")), "{said}");
        // Like `prisma migrate resolve --rolled-back`, which this engine does not support.
        let resolve =
            "UPDATE _prisma_migrations SET rolled_back_at = now() WHERE finished_at IS NULL AND migration_name";
        self.world.postgres.sql_in("app", &format!("{resolve} = '{name}'"));
    }
}

#[test]
fn its_migrations_run_as_an_exempt_role_or_as_the_leader() {
    let project = Project::start();
    project.add("1_init", INIT);
    project.is_applied("migrator", None);
    project.add("2_more", MORE);
    project.is_refused("2_more", Some(1), "cannot determine what this statement writes: CALL");
    project.is_applied("migrator", None);
    project.add("3_plain", PLAIN);
    project.is_refused("3_plain", None, "resource \"scheduler\" is fenced, and this session has no token for it");
    project.world.raise_to(2);
    project.is_refused("3_plain", Some(1), "fencing token 1 for resource \"scheduler\" is stale");
    project.is_applied(SUPERUSER, Some(2));
    let columns = "SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0";
    let mut leader = Wire::login(&project.world.proxy.address(), SUPERUSER, "app");
    assert_eq!(value(&mut leader, columns).as_deref(), Some("n state note owner"));
}
