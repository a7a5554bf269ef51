//! Reading the catalogue.

use super::Postgres;
use crate::catalogue::{self, Catalogue, Dependencies, Fenced, Views};
use crate::fence::refusal::Cause;

impl Postgres {
    pub(super) async fn read_catalogue(&self, fences: Fenced<'_>, temporary: Option<&str>) -> Result<Catalogue, Cause> {
        let (asked, most_rows) = catalogue::question(fences, temporary, Views::Asked);
        let all_writable = || catalogue::question(fences, temporary, Views::AllWritable).0;
        // For one session on a connection of its own: who makes many temporary relations keeps nobody else waiting.
        let answers = if temporary.is_some() { self.ask_once(&asked).await } else { self.look(&asked).await };
        let answers = match answers {
            Ok(answers) => answers,
            // Somebody alters a view: nothing is left out then.
            Err(error) if temporary.is_none() && error.is_answer() => self.look(&all_writable()).await?,
            // Where nothing is fenced, nobody has to have run `fencegate init`; and what failed a moment ago, when the
            // database was being made, need not fail now.
            Err(_) => self.ask_once(&all_writable()).await?,
        };
        Ok(Catalogue::read(&answers, most_rows)?)
    }

    pub(super) async fn read_dependencies(&self, fences: Fenced<'_>) -> Result<Dependencies, Cause> {
        let question = catalogue::question_of_dependencies(fences);
        let answers = match self.look(&question).await {
            Ok(answers) => answers,
            Err(_) => self.ask_once(&question).await?,
        };
        Ok(Dependencies::read(&answers)?)
    }
}
