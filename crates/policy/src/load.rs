//! Loads a directory of files into one set.
//!
//! Owns the selection of files, and the conflicts between them. Must never return part of a set.

use super::document::{self, DeclaredIssuer, DeclaredResource, Document, Placed};
use super::{Keyed, PolicySet, Resource, Template};
use crate::yaml::{Fault, FileError, LARGEST_FILE, Position};
use std::{
    collections::HashMap,
    fs::{self, File},
    hash::Hash,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Reads all `*.yaml` and `*.yml` files of a directory, but not of its subdirectories, as one set. Skips files whose
/// names begin with a dot.
///
/// # Errors
/// All faults of the directory, ordered by file name and position.
pub fn load(directory: &Path) -> Result<PolicySet, Vec<FileError>> {
    let paths = policy_files(directory).map_err(|error| {
        vec![FileError::new(directory, Position::START, &format!("cannot read the directory: {error}"))]
    })?;
    if paths.is_empty() {
        let message = "the directory has no policies: no file in it ends in .yaml or .yml";
        return Err(vec![FileError::new(directory, Position::START, message)]);
    }
    let files = paths.into_iter().map(|path| {
        let content = read_bounded(&path);
        (path, content)
    });
    join(files)
}

fn policy_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if !text.starts_with('.') && (text.ends_with(".yaml") || text.ends_with(".yml")) {
            paths.push(directory.join(name));
        }
    }
    paths.sort();
    Ok(paths)
}

/// The file's bytes, up to one more than the limit.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // Check the type before opening the file, because opening a pipe can block forever.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Combines the files' contents into one set.
///
/// # Errors
/// All faults, ordered by file and position.
pub fn join(files: impl IntoIterator<Item = (PathBuf, io::Result<Vec<u8>>)>) -> Result<PolicySet, Vec<FileError>> {
    let mut joining = Joining::default();
    for (path, content) in files {
        let (document, faults) = match content {
            Ok(bytes) => document::read(&bytes),
            Err(error) => {
                let message = format!("cannot read the file: {error}");
                (Document::default(), vec![Fault { at: Position::START, message }])
            }
        };
        joining.add(path, document, faults);
    }
    joining.finish()
}

/// Declarations of the files so far, with the position of the first of each kind.
#[derive(Default)]
struct Joining {
    files: Vec<PathBuf>,
    errors: Vec<FileError>,
    declared: HashMap<Declaration, FilePosition>,
    resources: Vec<Resource>,
    issuers: Vec<(DeclaredIssuer, FilePosition)>,
    /// Names with a placeholder.
    templates: Vec<(Template, FilePosition)>,
    /// Names without one.
    names: Vec<(String, FilePosition)>,
    settings: Document,
}

/// An item that may be declared only once.
#[derive(PartialEq, Eq, Hash)]
enum Declaration {
    Resource(String),
    Table(super::QualifiedName),
    Function(super::FencedFunction),
    Setting(&'static str),
}

/// A position in the file with that number.
type FilePosition = (usize, Position);

impl Joining {
    fn add(&mut self, path: PathBuf, document: Document, mut faults: Vec<Fault>) {
        self.files.push(path);
        for resource in document.resources {
            self.add_resource(resource, &mut faults);
        }
        self.add_setting("opaque", document.opaque, |settings| &mut settings.opaque, &mut faults);
        self.add_setting("opaque_roles", document.opaque_roles, |settings| &mut settings.opaque_roles, &mut faults);
        self.add_setting("databases", document.databases, |settings| &mut settings.databases, &mut faults);
        self.add_setting("exempt_roles", document.exempt_roles, |settings| &mut settings.exempt_roles, &mut faults);
        faults.sort_by_key(|fault| (fault.at.line, fault.at.column));
        let file = &self.files[self.files.len() - 1];
        self.errors.extend(faults.into_iter().map(|fault| FileError::new(file, fault.at, &fault.message)));
    }

    fn add_resource(&mut self, resource: DeclaredResource, faults: &mut Vec<Fault>) {
        let Placed { at, value: name } = resource.name;
        self.declare(Declaration::Resource(name.clone()), at, &format!("the resource `{name}`"), faults);
        for Placed { at, value } in &resource.tables {
            self.declare(Declaration::Table(value.name.clone()), *at, &format!("the table {}", value.name), faults);
        }
        for Placed { at, value } in &resource.functions {
            self.declare(Declaration::Function(value.clone()), *at, &format!("the function {value}"), faults);
        }
        if let Some(issuer) = &resource.issuer {
            self.add_issuer(issuer, faults);
        }
        self.add_name(&name, resource.names.as_ref(), at, faults);
        let (issuer, issuers) = match resource.issuer.map(|issuer| issuer.value) {
            Some(DeclaredIssuer::One(issuer)) => (Some(issuer), None),
            Some(DeclaredIssuer::OfKeys(issuers)) => (None, Some(issuers)),
            None => (None, None),
        };
        self.resources.push(Resource {
            name,
            issuer,
            keyed: resource.names.map(|names| Keyed { names, issuers }),
            family: None,
            tables: resource.tables.into_iter().map(|table| table.value).collect(),
            functions: resource.functions.into_iter().map(|function| function.value).collect(),
            on_missing: resource.on_missing,
            mode: resource.mode,
            fingerprint: String::new(),
        });
    }

    /// Records the name. A resource must not have the name of another resource's key.
    fn add_name(&mut self, name: &str, names: Option<&Template>, at: Position, faults: &mut Vec<Fault>) {
        let mut templates = self.templates.iter();
        let other = match names {
            // This text was already reported.
            Some(names) => {
                let template = templates.find(|(other, _)| other != names && other.overlaps(names)).map(|it| it.1);
                template.or_else(|| self.names.iter().find(|(other, _)| names.matches(other)).map(|it| it.1))
            }
            None => templates.find(|(other, _)| other.matches(name)).map(|it| it.1),
        };
        if let Some(place) = other {
            let message = format!("`{name}` and the resource at {} can have the same name", self.shown(place));
            faults.push(Fault { at, message });
        }
        let here = (self.files.len() - 1, at);
        match names {
            Some(names) => self.templates.push((names.clone(), here)),
            None => self.names.push((name.to_owned(), here)),
        }
    }

    fn shown(&self, (file, at): FilePosition) -> String {
        format!("{}:{}:{}", self.files[file].display(), at.line, at.column)
    }

    /// Several resources may share an issuer. Elections must not be nested: the outer one would wait for the leader
    /// of the inner one.
    fn add_issuer(&mut self, issuer: &Placed<DeclaredIssuer>, faults: &mut Vec<Fault>) {
        let Placed { at, value: name } = issuer;
        if self.issuers.iter().any(|(known, _)| known.is_same(name)) {
            return;
        }
        if let Some((outer, place)) = self.issuers.iter().find(|(known, _)| known.may_be_nested_with(name)) {
            let message = format!(
                "the elections `{name}` and `{outer}`, at {}, are nested: rename one of them",
                self.shown(*place)
            );
            faults.push(Fault { at: *at, message });
        }
        self.issuers.push((name.clone(), (self.files.len() - 1, *at)));
    }

    fn add_setting<T>(
        &mut self,
        key: &'static str,
        setting: Option<Placed<T>>,
        slot: fn(&mut Document) -> &mut Option<Placed<T>>,
        faults: &mut Vec<Fault>,
    ) {
        if let Some(setting) = setting {
            self.declare(Declaration::Setting(key), setting.at, &format!("`{key}`"), faults);
            slot(&mut self.settings).get_or_insert(setting);
        }
    }

    fn declare(&mut self, declaration: Declaration, at: Position, what: &str, faults: &mut Vec<Fault>) {
        let here = (self.files.len() - 1, at);
        let (file, first) = *self.declared.entry(declaration).or_insert(here);
        if (file, first) != here {
            let message = format!("{what} is already declared, at {}", self.shown((file, first)));
            faults.push(Fault { at, message });
        }
    }

    fn finish(self) -> Result<PolicySet, Vec<FileError>> {
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let Document { opaque, opaque_roles, databases, exempt_roles, .. } = self.settings;
        let mut set = PolicySet::new(
            self.resources,
            opaque.map(|opaque| opaque.value).unwrap_or_default(),
            databases.map(|databases| databases.value),
            exempt_roles.map(|roles| roles.value).unwrap_or_default(),
        )
        .with_opaque_roles(opaque_roles.map(|roles| roles.value).unwrap_or_default());
        set.files = self.files.len();
        let table = |(declaration, (file, at)): (Declaration, FilePosition)| match declaration {
            Declaration::Table(name) => Some((name, (self.files.get(file)?.clone(), at))),
            Declaration::Resource(_) | Declaration::Function(_) | Declaration::Setting(_) => None,
        };
        set.places = self.declared.into_iter().filter_map(table).collect();
        Ok(set)
    }
}
