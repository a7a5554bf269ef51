//! Explains what policies cover in a database. Any role that can connect may run it.

use crate::catalogue::{
    Catalogue, Dependencies, Explanation, Fenced, Views, database_and_functions, explanation, functions_that_mention,
    question, question_of_dependencies,
};
use crate::policy::PolicySet;
use crate::sql::{StatementResult, answers, message};
use crate::tls::ControlConfig;
use tokio_postgres::Client;

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// No connection.
    #[error("cannot connect: {}", message(.0))]
    Connect(#[source] tokio_postgres::Error),
    /// The server refused.
    #[error("cannot read the catalogue: {}", message(.0))]
    Refused(#[source] tokio_postgres::Error),
    /// The catalogue cannot be understood.
    #[error("cannot read the catalogue: {0}")]
    Catalogue(String),
}

/// Reads what the policies cover in the database of `config`. Cancel-safe.
///
/// # Errors
/// When the database cannot be asked, or its catalogue is not understood.
pub async fn explain(config: &ControlConfig, policies: &PolicySet) -> Result<Explanation, ExplainError> {
    let (client, connection) = config.connect().await.map_err(ExplainError::Connect)?;
    // Ends when the client is dropped.
    tokio::spawn(connection);
    ask(&client, "SET standard_conforming_strings = on; SET search_path = pg_catalog; SET jit = off").await?;
    let fences = Fenced(&policies.resources);
    let (asked, most_rows) = question(fences, None, Views::Asked);
    let answers = match ask(&client, &asked).await {
        Ok(answers) => answers,
        // A view is being altered.
        Err(_) => ask(&client, &question(fences, None, Views::AllWritable).0).await?,
    };
    let catalogue = Catalogue::read(&answers, most_rows).map_err(ExplainError::Catalogue)?;
    let answers = ask(&client, &question_of_dependencies(fences)).await?;
    let dependencies = Dependencies::read(&answers).map_err(ExplainError::Catalogue)?;
    let answers = ask(&client, &database_and_functions(policies)).await?;
    let mentions = ask(&client, &functions_that_mention(policies)).await?;
    Ok(explanation(policies, &catalogue, &dependencies, &answers, &mentions))
}

async fn ask(client: &Client, query: &str) -> Result<Vec<StatementResult>, ExplainError> {
    client.simple_query(query).await.map(answers).map_err(ExplainError::Refused)
}
