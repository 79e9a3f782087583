//! Contexts: named sets of client keys, each for one broker, in files that only their user can read.
//!
//! The file of a context has the keys of `[client]`, and a table `[login]` with what `thalweg login` has stored. It is
//! replaced as a whole, so a reader finds the old file or the new one.

use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::keys::{Key, Kind, Scope};
use super::{ConfigError, Result, check, file_entry, find, toml_fault};

/// Maximum number of contexts of a user.
const CONTEXTS_MAX: usize = 1000;
/// Maximum size of a file in bytes. One with every key is far below it.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Ending of the name of a context's file.
const ENDING: &str = ".toml";
/// File with the name of the current context.
const CURRENT: &str = "current-context";
/// Table with what `thalweg login` has stored.
const LOGIN: &str = "login";
/// Mode of each file, and of the folder of contexts.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// Bits of a mode with which other users of the machine have access.
const OTHERS: u32 = 0o077;

/// Name of a context, which is also the name of its file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContextName(String);

impl ContextName {
    /// Parses a name: letters, digits, and inside also dots, hyphens and underscores.
    pub fn parse(text: &str) -> Result<Self> {
        let is_inner = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
        let begins = text.starts_with(|char: char| char.is_ascii_alphanumeric());
        if begins && text.len() <= NAME_BYTES_MAX && text.chars().all(is_inner) {
            return Ok(Self(text.to_owned()));
        }
        Err(ConfigError(format!(
            "'{}' is not the name of a context: write 1 to {NAME_BYTES_MAX} letters, digits, dots, hyphens and \
             underscores, with a letter or a digit first",
            text.chars().take(NAME_BYTES_MAX).collect::<String>()
        )))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContextName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Secret of a stored login.
#[derive(Clone)]
pub enum LoginSecret {
    /// Token that the broker knows, and that ends at this time, in ms since 1970.
    Token(Zeroizing<String>, u64),
    /// Password in clear text.
    Password(Zeroizing<String>),
}

/// Login that is stored in a context.
#[derive(Clone)]
pub struct StoredLogin {
    /// Name of the user.
    pub user: String,
    /// Credential with which the user logs in.
    pub secret: LoginSecret,
}

/// Set of client keys for one broker. `Debug` is not derived, as it may have secrets.
#[derive(Clone)]
pub struct Context {
    /// Name of the context.
    pub name: ContextName,
    /// Keys in the order of the table, with their checked values. `server` is one of them.
    keys: Vec<(&'static Key, String)>,
    /// Credential that `thalweg login` has stored.
    pub login: Option<StoredLogin>,
}

impl Context {
    /// Creates a context with these keys, each given by a name and a value.
    pub fn new(name: ContextName, keys: &[(&'static str, String)]) -> Result<Self> {
        let mut context = Self { name, keys: Vec::new(), login: None };
        for (key, value) in keys {
            let key = find(key, &context.place())?;
            context.put(key, value)?;
        }
        context.checked()
    }

    /// Returns the address of the broker.
    pub fn server(&self) -> &str {
        self.value("server").unwrap_or_default()
    }

    /// Returns the value of a key that the context has.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.keys.iter().find(|(key, _)| key.name == name).map(|(_, value)| value.as_str())
    }

    /// Returns the user of the login, or of the keys.
    pub fn user(&self) -> Option<&str> {
        self.login.as_ref().map(|login| login.user.as_str()).or_else(|| self.value("user"))
    }

    /// Returns this context with another stored login.
    pub fn with_login(&self, login: Option<StoredLogin>) -> Self {
        Self { login, ..self.clone() }
    }

    /// Returns every key with its value, for display: the values of secrets are hidden.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Key, &str)> {
        let shown = |(key, value): &'_ (&'static Key, String)| matches!(key.kind, Kind::Secret) && !value.is_empty();
        self.keys.iter().map(move |pair| (pair.0, if shown(pair) { super::HIDDEN } else { pair.1.as_str() }))
    }

    /// Returns the keys with their values. A stored login takes the place of those about users, passwords and tokens.
    pub(super) fn entries(&self) -> Vec<(&'static Key, String)> {
        let Some(StoredLogin { user, secret }) = &self.login else {
            return self.keys.clone();
        };
        let (secret_key, secret) = match secret {
            LoginSecret::Token(token, _) => ("token", token),
            LoginSecret::Password(password) => ("password", password),
        };
        let is_kept = |(key, _): &&(&'static Key, String)| !super::LOGIN_KEYS.contains(&key.name);
        let mut entries: Vec<_> = self.keys.iter().filter(is_kept).cloned().collect();
        for (name, value) in [("user", user.as_str()), (secret_key, secret.as_str())] {
            if let Some(key) = super::KEYS.iter().find(|key| key.name == name) {
                entries.push((key, value.to_owned()));
            }
        }
        entries
    }

    fn put(&mut self, key: &'static Key, value: &str) -> Result<()> {
        if key.scope != Scope::Client {
            return Err(ConfigError(format!("{}: {} is a key of the broker, not of clients", self.place(), key.name)));
        }
        let value = check(key, value).map_err(|e| ConfigError(format!("{}: {}: {e}", self.place(), key.name)))?;
        self.keys.retain(|(existing, _)| existing.name != key.name);
        self.keys.push((key, value));
        Ok(())
    }

    fn checked(mut self) -> Result<Self> {
        let place = self.place();
        if self.server().is_empty() {
            return Err(ConfigError(format!("{place}: server is missing: a context is for one broker")));
        }
        client::Addresses::parse(self.server()).map_err(|e| ConfigError(format!("{place}: server: {}", e.message)))?;
        let is_set = |name: &str| self.value(name).is_some_and(|value| !value.is_empty());
        if is_set("client_cert") != is_set("client_key") {
            return Err(ConfigError(format!(
                "{place}: client_cert and client_key belong together: set both or neither"
            )));
        }
        if is_set("user") && (is_set("token") || is_set("token_file")) {
            return Err(ConfigError(format!("{place}: user and a token are both set: remove one")));
        }
        let order = |name: &str| super::KEYS.iter().position(|key| key.name == name);
        self.keys.sort_by_key(|(key, _)| order(key.name));
        Ok(self)
    }

    fn place(&self) -> String {
        format!("context {}", self.name)
    }

    fn has_secret(&self) -> bool {
        self.login.is_some()
            || self.keys.iter().any(|(key, value)| matches!(key.kind, Kind::Secret) && !value.is_empty())
    }

    fn to_toml(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new("# A context of thalweg: see `thalweg context --help`.\n".to_owned());
        for (key, value) in &self.keys {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{} = {}", key.name, key.kind.show_toml(value));
        }
        if let Some(StoredLogin { user, secret }) = &self.login {
            let quoted = |text: &str| toml::Value::String(text.to_owned());
            let _ = writeln!(text, "\n# Stored by `thalweg login`; `thalweg logout` removes it.\n[{LOGIN}]");
            let _ = writeln!(text, "user = {}", quoted(user));
            let _ = match secret {
                LoginSecret::Token(token, expires_ms) => {
                    writeln!(text, "token = {}\nexpires_ms = {expires_ms}", quoted(token))
                }
                LoginSecret::Password(password) => writeln!(text, "password = {}", quoted(password)),
            };
        }
        text
    }

    fn parse(name: ContextName, path: &Path, text: &str) -> Result<Self> {
        let mut context = Self { name, keys: Vec::new(), login: None };
        let table: toml::Table =
            text.parse().map_err(|e| ConfigError(format!("{}: {}", path.display(), toml_fault(text, &e))))?;
        for (name, value) in &table {
            match (name.as_str(), value) {
                (LOGIN, toml::Value::Table(login)) => context.login = Some(stored_login(path, login)?),
                _ => {
                    let (key, value) = file_entry(path, name, value, Scope::Client)?;
                    context.put(key, &value)?;
                }
            }
        }
        context.checked()
    }
}

/// Reads the table of a stored login. Errors name keys and no values.
fn stored_login(path: &Path, table: &toml::Table) -> Result<StoredLogin> {
    let wrong = |why: &str| ConfigError(format!("{}: [{LOGIN}]: {why}; log in again: thalweg login", path.display()));
    let text = |name: &str| table.get(name).and_then(toml::Value::as_str).filter(|text| !text.is_empty());
    if let Some(unknown) = table.keys().find(|key| !["user", "token", "expires_ms", "password"].contains(&key.as_str()))
    {
        return Err(wrong(&format!("there is no key {unknown}")));
    }
    let user = text("user").ok_or_else(|| wrong("user is missing"))?.to_owned();
    let secret = match (text("token"), text("password")) {
        (Some(token), None) => {
            let expires_ms = table.get("expires_ms").and_then(toml::Value::as_integer);
            let expires_ms = expires_ms.and_then(|at| u64::try_from(at).ok());
            LoginSecret::Token(
                Zeroizing::new(token.to_owned()),
                expires_ms.ok_or_else(|| wrong("expires_ms is not a time in ms since 1970"))?,
            )
        }
        (None, Some(password)) => LoginSecret::Password(Zeroizing::new(password.to_owned())),
        _ => return Err(wrong("it has not one of token and password")),
    };
    Ok(StoredLogin { user, secret })
}

/// Source of the name of a command's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenBy {
    /// The option `--context`.
    Flag,
    /// The variable `THALWEG_CONTEXT`.
    Env,
    /// `thalweg context use`.
    Current,
}

impl fmt::Display for ChosenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "--context",
            Self::Env => "$THALWEG_CONTEXT",
            Self::Current => "thalweg context use",
        })
    }
}

/// Context of a command, and what named it.
#[derive(Clone)]
pub struct Chosen {
    /// The context.
    pub context: Context,
    /// Source of its name.
    pub by: ChosenBy,
}

/// Folder with the contexts of a user.
pub struct Contexts {
    folder: PathBuf,
}

impl Contexts {
    /// Opens the contexts of the user of this process: below `XDG_CONFIG_HOME`, or `.config` in the home directory.
    pub fn of_user() -> Result<Self> {
        let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = of("XDG_CONFIG_HOME").or_else(|| of("HOME").map(|home| home.join(".config")));
        let folder = folder.ok_or_else(|| {
            ConfigError("contexts have no folder: neither XDG_CONFIG_HOME nor HOME is an absolute path".into())
        })?;
        Ok(Self::below(&folder))
    }

    /// Opens the contexts below a folder with the configuration of programs.
    pub fn below(folder: &Path) -> Self {
        Self { folder: folder.join("thalweg") }
    }

    /// Returns the path of a context's file.
    pub fn path(&self, name: &ContextName) -> PathBuf {
        self.files().join(format!("{name}{ENDING}"))
    }

    fn files(&self) -> PathBuf {
        self.folder.join("contexts")
    }

    /// Returns the names of all contexts, in order.
    pub fn names(&self) -> Result<Vec<ContextName>> {
        let files = match fs::read_dir(self.files()) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(&self.files(), &error)),
        };
        let mut names = Vec::new();
        for file in files {
            let file = file.map_err(|error| at(&self.files(), &error))?.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(ENDING));
            names.extend(name.and_then(|name| ContextName::parse(name).ok()));
        }
        names.sort();
        Ok(names)
    }

    /// Returns the name of the current context, if there is one.
    pub fn current(&self) -> Result<Option<ContextName>> {
        let path = self.folder.join(CURRENT);
        let Some(text) = read(&path)? else { return Ok(None) };
        let name = ContextName::parse(text.trim()).map_err(|error| {
            ConfigError(format!("{}: {error}; choose another one: thalweg context use NAME", path.display()))
        })?;
        Ok(Some(name))
    }

    /// Makes a context the current one, or none.
    pub fn set_current(&self, name: Option<&ContextName>) -> Result<()> {
        let path = self.folder.join(CURRENT);
        match name {
            Some(name) => self.write(&path, format!("{name}\n").as_bytes()),
            None => remove(&path).map(drop),
        }
    }

    /// Reads a context. The error for one that does not exist lists those that do.
    pub fn read(&self, name: &ContextName) -> Result<Context> {
        let path = self.path(name);
        let Some(text) = read(&path)? else { return Err(self.unknown(name)) };
        let context = Context::parse(name.clone(), &path, &text)?;
        let mode = fs::metadata(&path).map_err(|error| at(&path, &error))?.permissions().mode();
        if context.has_secret() && mode & OTHERS != 0 {
            let path = path.display();
            return Err(ConfigError(format!(
                "{path} has a secret, and other users of this machine may read it (mode {:o}): chmod 600 {path}",
                mode & 0o777
            )));
        }
        Ok(context)
    }

    /// Returns `true` if there is a file of a context of this name, whatever it contains.
    pub fn has(&self, name: &ContextName) -> bool {
        self.path(name).exists()
    }

    /// Stores a context, in the place of the one of that name.
    pub fn put(&self, context: &Context) -> Result<()> {
        if !self.has(&context.name) && self.names()?.len() >= CONTEXTS_MAX {
            return Err(ConfigError(format!("there are {CONTEXTS_MAX} contexts: delete one first")));
        }
        self.write(&self.path(&context.name), context.to_toml().as_bytes())
    }

    /// Deletes a context. If it is the current one, there is none afterwards.
    pub fn delete(&self, name: &ContextName) -> Result<()> {
        if !remove(&self.path(name))? {
            return Err(self.unknown(name));
        }
        if self.current().ok().flatten().as_ref() == Some(name) {
            self.set_current(None)?;
        }
        Ok(())
    }

    /// Returns the context of a command: the one that is named, else the current one. An empty name stands for none.
    pub fn choose(&self, named: Option<(&str, ChosenBy)>) -> Result<Option<Chosen>> {
        let (name, by) = match named {
            Some(("", _)) => return Ok(None),
            Some((name, by)) => (ContextName::parse(name).map_err(|e| ConfigError(format!("{by}: {e}")))?, by),
            None => match self.current()? {
                Some(name) => (name, ChosenBy::Current),
                None => return Ok(None),
            },
        };
        Ok(Some(Chosen { context: self.read(&name)?, by }))
    }

    /// Returns the error for a context that does not exist.
    fn unknown(&self, name: &ContextName) -> ConfigError {
        let names: Vec<String> = self.names().unwrap_or_default().iter().map(ToString::to_string).collect();
        ConfigError(match names.len() {
            0 => format!("there is no context {name}, and no other; thalweg context add {name} --server HOST:PORT"),
            _ => format!("there is no context {name}; there are {}", names.join(", ")),
        })
    }

    /// Writes a file as a whole. A crash leaves the old file or the new one.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let folder = path.parent().unwrap_or(&self.folder);
        let written = make_private(&self.folder).and_then(|()| make_private(folder)).and_then(|()| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let draft = folder.join(format!(".{name}.{}.draft", std::process::id()));
            // One that a killed process left.
            let outcome = remove_file(&draft).and_then(|_| write_new(&draft, bytes)).and_then(|()| {
                fs::rename(&draft, path)?;
                File::open(folder)?.sync_all()
            });
            outcome.inspect_err(|_| drop(remove_file(&draft)))
        });
        written.map_err(|error| at(path, &error))
    }
}

/// Creates a folder for this user alone, if it is missing. Takes the access of others to one that exists.
fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & OTHERS != 0 {
        fs::set_permissions(folder, Permissions::from_mode(mode & 0o777 & !OTHERS))?;
    }
    Ok(())
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Reads a small file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Zeroizing<String>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(path, &error)),
    };
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| at(path, &error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigError(format!("{} is larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    Ok(Some(text))
}

/// Removes a file. Returns `true` if it existed.
fn remove(path: &Path) -> Result<bool> {
    remove_file(path).map_err(|error| at(path, &error))
}

fn remove_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn at(path: &Path, error: &io::Error) -> ConfigError {
    ConfigError(format!("{}: {error}", path.display()))
}
