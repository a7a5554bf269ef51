//! Texts of settings and their sources. Precedence: flag, environment variable, file, default.
//!
//! Owns the source that an error names. Must never print a secret.

use super::table::{Fallback, Form, SETTINGS, Setting};
use super::{ConfigError, SettingError};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use fencegate_policy::yaml::{self, Fault, FileError, LARGEST_FILE, Node, NodeReader, Value};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// Settings from the command line and the environment. Not `Debug`: they contain passwords.
#[derive(Clone, Default)]
pub struct SettingsArguments {
    /// Settings file.
    pub(super) file: Option<PathBuf>,
    texts: HashMap<&'static str, Vec<String>>,
}

#[cfg(test)]
impl SettingsArguments {
    /// Sets a flag that cannot be part of a shell-like line of words.
    pub(super) fn set(&mut self, key: &'static str, text: &str) {
        self.texts.insert(key, vec![text.to_owned()]);
    }
}

impl clap::Args for SettingsArguments {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .env("FENCEGATE_CONFIG")
            .value_name("FILE")
            .help("YAML file of settings; keys are the flags below with `_` instead of `-`");
        command.arg(file).args(SETTINGS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &Setting) -> Arg {
    let default = match setting.default {
        Fallback::Required => String::new(),
        Fallback::Is(text) => format!(" [default: {text}]"),
        Fallback::Nothing(meaning) => format!(" [default: {meaning}]").replace('`', ""),
    };
    let argument = Arg::new(setting.key)
        .long(setting.flag())
        .env(setting.variable())
        .value_name(setting.value)
        .hide_env_values(setting.form == Form::Secret)
        .help(format!("{}: {}{default}", setting.help, setting.range.replace('`', "")));
    match setting.form {
        Form::List => argument.action(ArgAction::Append).value_delimiter(','),
        Form::Text | Form::Secret | Form::Number => argument,
    }
}

impl clap::FromArgMatches for SettingsArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = |setting: &Setting| matches.get_many::<String>(setting.key).map(|texts| texts.cloned().collect());
        let is_empty = |setting: &&Setting| {
            matches.value_source(setting.key) == Some(ValueSource::CommandLine)
                && matches.get_many::<String>(setting.key).is_some_and(|mut texts| texts.any(String::is_empty))
        };
        if let Some(setting) = SETTINGS.iter().find(is_empty) {
            let message = format!("--{} is empty: set a value or omit it\n", setting.flag());
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message));
        }
        Ok(Self {
            file: matches.get_one::<String>("config").map(PathBuf::from),
            texts: SETTINGS.iter().filter_map(|setting| Some((setting.key, texts(setting)?))).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A setting's text and its source.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) text: String,
    pub(super) source: GivenBy,
}

#[derive(Clone, Debug)]
pub(super) enum GivenBy {
    Argument(&'static str),
    File { file: PathBuf, at: yaml::Position, key: &'static str },
    Default(&'static str),
}

impl Given {
    pub(super) fn read<T, E: Into<SettingError>>(
        &self,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, ConfigError> {
        read(&self.text).map_err(|error| self.source.fault(error))
    }
}

impl GivenBy {
    pub(super) fn fault(&self, error: impl Into<SettingError>) -> ConfigError {
        let error = error.into();
        match self {
            GivenBy::Argument(key) | GivenBy::Default(key) => ConfigError::Argument { key, error },
            GivenBy::File { file, at, key } => FileError::new(file, *at, &format!("`{key}` {error}")).into(),
        }
    }

    /// True if the setting is not set.
    pub(super) fn is_default(&self) -> bool {
        matches!(self, GivenBy::Default(_))
    }

    /// The source as `SHOW CONFIG` shows it.
    fn name(&self) -> String {
        match self {
            GivenBy::Argument(_) => "flag or environment".to_owned(),
            GivenBy::File { file, at, .. } => format!("{}:{}:{}", file.display(), at.line, at.column),
            GivenBy::Default(_) => "default".to_owned(),
        }
    }
}

/// All texts, by key.
#[derive(Default)]
pub(super) struct Texts(HashMap<&'static str, Vec<Given>>);

impl Texts {
    /// Combines the arguments, the file and the defaults.
    pub(super) fn join(arguments: &SettingsArguments, mut file: Texts) -> Self {
        let mut joined = HashMap::new();
        for setting in &SETTINGS {
            let key = setting.key;
            let of = |text: &str, source: GivenBy| Given { text: text.to_owned(), source };
            // An empty variable counts as not set.
            let of_arguments = arguments.texts.get(key).filter(|texts| texts.iter().any(|text| !text.is_empty()));
            let of_file = file.0.remove(key).filter(|given| !given.is_empty());
            let given = match (of_arguments, of_file, setting.default) {
                (Some(texts), ..) => texts.iter().map(|text| of(text, GivenBy::Argument(key))).collect(),
                (None, Some(given), _) => given,
                (None, None, Fallback::Is(text)) => vec![of(text, GivenBy::Default(key))],
                (None, None, Fallback::Required | Fallback::Nothing(_)) => Vec::new(),
            };
            joined.insert(key, given);
        }
        Self(joined)
    }

    /// Sets the default of a setting whose default is the value of another setting.
    pub(super) fn fall_back(&mut self, key: &'static str, text: Option<&str>) {
        if self.several(key).is_empty() {
            let default = text.map(|text| Given { text: text.to_owned(), source: GivenBy::Default(key) });
            self.0.insert(key, default.into_iter().collect());
        }
    }

    /// Reads a settings file.
    /// Errors: the first problem in the file.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
            .map_err(|error| ConfigError::Unreadable { file: path.to_owned(), error })?;
        Self::parse(path, &bytes)
    }

    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let in_file = |fault: Fault| FileError::new(path, fault.at, &fault.message);
        let root = yaml::parse(bytes).map_err(in_file)?;
        let mut reader = NodeReader::default();
        let mut texts = Self::default();
        let keys = SETTINGS.each_ref().map(|setting| setting.key);
        if let Some(fields) = reader.fields(&root, "the file", &keys) {
            for setting in &SETTINGS {
                let Some(node) = fields.find(setting.key) else { continue };
                let items = match &node.value {
                    Value::List(list) if setting.form == Form::List => list.iter().collect(),
                    _ => vec![node],
                };
                let given = items.into_iter().filter_map(|item| of_node(&mut reader, path, setting, item)).collect();
                texts.0.insert(setting.key, given);
            }
        }
        match reader.faults.into_iter().next() {
            Some(fault) => Err(in_file(fault).into()),
            None => Ok(texts),
        }
    }

    /// All texts of a list.
    pub(super) fn several(&self, key: &'static str) -> &[Given] {
        self.0.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The text of a setting with a single value.
    pub(super) fn one(&self, key: &'static str) -> Option<&Given> {
        self.several(key).last().filter(|given| !given.text.is_empty())
    }

    /// The error, with the source of the setting.
    pub(super) fn fault(&self, key: &'static str, error: impl Into<SettingError>) -> ConfigError {
        self.one(key).map_or(&GivenBy::Argument(key), |given| &given.source).fault(error)
    }

    /// The value of an optional setting.
    pub(super) fn read_one<T, E: Into<SettingError>>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        self.one(key).map(|given| given.read(read)).transpose()
    }

    /// Errors: required settings that are missing.
    pub(super) fn are_complete(&self) -> Result<(), ConfigError> {
        let is_missing = |setting: &&Setting| setting.default == Fallback::Required && self.one(setting.key).is_none();
        let missing: Vec<_> = SETTINGS.iter().filter(is_missing).map(|setting| setting.key).collect();
        if missing.is_empty() { Ok(()) } else { Err(ConfigError::Missing(missing)) }
    }

    /// The value of a required setting.
    pub(super) fn require<T, E: Into<SettingError>>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, ConfigError> {
        self.read_one(key, read)?.ok_or_else(|| ConfigError::Missing(vec![key]))
    }

    /// All settings without secrets.
    pub(super) fn shown(&self) -> Vec<Shown> {
        let shown = |setting: &'static Setting| {
            let given = self.several(setting.key);
            let texts: Vec<_> = given.iter().map(|given| without_secret(setting, &given.text)).collect();
            let source = given.first().map_or_else(|| "default".to_owned(), |given| given.source.name());
            let value = (!texts.is_empty()).then(|| texts.join(","));
            Shown { setting, value, source, given: Unmasked(given.iter().map(|given| given.text.clone()).collect()) }
        };
        SETTINGS.iter().map(shown).collect()
    }
}

/// A setting as `SHOW CONFIG` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The setting.
    pub setting: &'static Setting,
    /// Its text without secrets; None if it is not set and has no default.
    pub value: Option<String>,
    /// Source of the text.
    pub source: String,
    given: Unmasked,
}

impl Shown {
    /// Compares the texts, secrets included. Sources do not matter.
    pub(super) fn is_as(&self, other: &Shown) -> bool {
        self.given == other.given
    }
}

/// Original texts, for comparison only: they may contain passwords.
#[derive(Clone, PartialEq, Eq)]
struct Unmasked(Vec<String>);

impl fmt::Debug for Unmasked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Unmasked").finish_non_exhaustive()
    }
}

fn of_node(reader: &mut NodeReader, path: &Path, setting: &'static Setting, node: &Node) -> Option<Given> {
    let text = match &node.value {
        Value::Integer(number) if setting.form == Form::Number => number.to_string(),
        _ => reader.text(node, &format!("`{}`", setting.key))?.to_owned(),
    };
    Some(Given { text, source: GivenBy::File { file: path.to_owned(), at: node.at, key: setting.key } })
}

/// Removes the password from a URL, and hides other secrets.
fn without_secret(setting: &Setting, text: &str) -> String {
    const HIDDEN: &str = "***";
    if setting.form != Form::Secret {
        return text.to_owned();
    }
    let url = text.split_once("://").filter(|(_, rest)| !rest.contains("password"));
    let Some((scheme, rest)) = url else { return HIDDEN.to_owned() };
    match rest.rsplit_once('@').map(|(user, host)| (user.split_once(':').map_or(user, |(user, _)| user), host)) {
        Some((user, host)) => format!("{scheme}://{user}:{HIDDEN}@{host}"),
        None => format!("{scheme}://{rest}"),
    }
}
