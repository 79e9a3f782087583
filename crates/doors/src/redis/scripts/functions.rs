//! Libraries of functions, which clients load with `FUNCTION LOAD` and call by their names. Each tenant has its own.
//!
//! The libraries of a tenant are one document of the broker, in the format of `FUNCTION DUMP`, so that each change of
//! them happens as a whole and is as durable as documents are. What a library registers is found out by running its
//! text, so that is done again on startup.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Result as Written;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::Broker;
use broker::metrics::Exposition;
use bytes::Bytes;
use engine::security::TenantName;
use futures_util::{StreamExt, stream};
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};

use super::lanes::{CLOSED, Lanes};
use super::state;
use super::text::{Script, check_jumps};
use crate::redis::codec::split_line;
use crate::redis::errors::{Done, Fail, fixed};
use crate::redis::names::{Tenant, prefix};
use crate::redis::rdb::libraries as dumped;

/// Kind of the documents with libraries.
const DOCUMENT: &str = "redis.functions";
/// Name of such a document, after the prefix of its tenant.
const NAME: &str = "functions";
/// Maximum number of libraries of a tenant, and of their functions.
const LIBRARIES_MAX: usize = 256;
const FUNCTIONS_MAX: usize = 8192;
/// Maximum size in bytes of the libraries of a tenant, with the names and descriptions of their functions. A document
/// has no more.
pub(super) const LIBRARIES_BYTES_MAX: usize = 1 << 20;
/// Time limit of `FUNCTION LOAD`, as in Redis.
const LOAD_TIME_MAX: Duration = Duration::from_millis(500);
/// Time limit of a library that was loaded before, on startup and in another thread.
pub(super) const AGAIN_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum duration of a wait for the functions after startup.
const RESTORE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Number of tenants whose functions are restored at the same time.
const RESTORES_MAX: usize = 8;
/// Time after which documents that could not be read are read again.
const RETRY: Duration = Duration::from_secs(1);

const RESTORING: Fail = fixed("LOADING the functions are still being restored: try again later");
const WRONG_NAME: Fail = fixed(
    "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one character long",
);
const NO_HEADER: Fail = fixed("ERR Invalid library metadata");

/// Text of a library. Each thread that runs one of its functions runs it once.
pub(in crate::redis) struct Code {
    /// Number that no other text has.
    pub(super) id: u64,
    pub(super) text: Box<[u8]>,
    /// Position of the text after the first line.
    pub(super) from: usize,
}

/// A function that a library registers while it is loaded.
pub(super) struct Registered {
    pub(super) name: Box<[u8]>,
    pub(super) description: Option<Box<[u8]>>,
    pub(super) flags: u8,
}

pub(in crate::redis) struct Function {
    pub(in crate::redis) script: Arc<Script>,
    pub(in crate::redis) description: Option<Box<[u8]>>,
}

pub(in crate::redis) struct Library {
    pub(in crate::redis) name: Box<str>,
    pub(in crate::redis) code: Arc<Code>,
    pub(in crate::redis) functions: BTreeMap<Box<[u8]>, Function>,
}

impl Code {
    pub(in crate::redis) fn text(&self) -> &[u8] {
        &self.text
    }
}

impl Library {
    /// Reads the first line of a library (`functionExtractLibMetaData` in `src/functions.c` of Redis).
    fn header(text: &[u8]) -> Done<(Box<str>, Arc<Code>)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);

        if !text.starts_with(b"#!") {
            return Err(Fail::new("ERR Missing library metadata"));
        }
        check_jumps(text)?;
        let from = text.iter().position(|byte| *byte == b'\n').ok_or(NO_HEADER)?;
        let (words, spans) = split_line(&text[..from]).or(Err(NO_HEADER))?;
        let mut words = spans.iter().map(|(from, until)| &words[*from as usize..*until as usize]);
        let engine = words.next().unwrap_or_default().strip_prefix(b"#!").ok_or(NO_HEADER)?;
        let mut name = None;
        for word in words {
            let (begin, value) = word.split_at_checked(5).unwrap_or((word, b""));
            if !begin.eq_ignore_ascii_case(b"name=") {
                return Err(Fail::of_bytes([b"ERR Invalid metadata value given: ", word].concat()));
            }
            if name.replace(value).is_some() {
                return Err(Fail::new("ERR Invalid metadata value, name argument was given multiple times"));
            }
        }
        let name = name.ok_or(Fail::new("ERR Library name was not given"))?;
        let name = checked(name)?;
        if !engine.eq_ignore_ascii_case(b"lua") {
            return Err(Fail::of_bytes([b"ERR Engine '", engine, b"' not found"].concat()));
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok((name, Arc::new(Code { id, text: text.into(), from })))
    }

    /// Runs the text of a library, which registers its functions. On a thread for scripts, as it may take long.
    fn load(name: Box<str>, code: Arc<Code>, time_max: Duration) -> Done<Self> {
        let began = Instant::now();
        let registered = state::with(|state| state.load(&code, time_max))??;
        // A function of Lua may have taken longer than the time limit, which ends only lines of the script.
        if began.elapsed() > time_max {
            return Err(Fail::new("ERR Error registering functions: ERR FUNCTION LOAD timeout"));
        }
        if registered.is_empty() {
            return Err(Fail::new("ERR No functions registered"));
        }
        let function = |Registered { name, description, flags }: Registered| {
            let script = Arc::new(Script::of_library(name.clone(), flags, code.clone()));
            (name, Function { script, description })
        };
        let functions = registered.into_iter().map(function).collect();
        Ok(Self { name, functions, code })
    }

    fn bytes(&self) -> usize {
        let names = self.functions.keys().map(|name| name.len());
        let descriptions = self.functions.values().filter_map(|function| Some(function.description.as_ref()?.len()));
        self.name.len() + self.code.text.len() + names.chain(descriptions).sum::<usize>()
    }
}

/// Returns the name of a library or function, if it is valid (`functionsVerifyName`).
fn checked(name: &[u8]) -> Done<Box<str>> {
    let is_valid = !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    Ok(std::str::from_utf8(name).ok().filter(|_| is_valid).ok_or(WRONG_NAME)?.into())
}

/// All libraries of a tenant. A change replaces the whole.
#[derive(Clone, Default)]
pub(in crate::redis) struct Libraries {
    by_name: BTreeMap<Box<str>, Arc<Library>>,
    /// Functions by their names in lower case, as Redis finds them.
    functions: HashMap<Vec<u8>, Arc<Script>>,
    bytes: usize,
}

impl Libraries {
    pub(in crate::redis) fn all(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    pub(in crate::redis) fn function_count(&self) -> usize {
        self.functions.len()
    }

    pub(in crate::redis) fn find(&self, function: &[u8]) -> Option<Arc<Script>> {
        self.functions.get(&function.to_ascii_lowercase()).cloned()
    }

    /// Returns the payload of `FUNCTION DUMP`.
    pub(in crate::redis) fn payload(&self) -> Vec<u8> {
        dumped::payload(self.all().map(|library| &*library.code.text))
    }

    fn check_name(&self, name: &str) -> Done {
        if self.by_name.contains_key(name) {
            return Err(Fail::new(format!("ERR Library '{name}' already exists")));
        }
        Ok(())
    }

    /// Adds a library. Fails if another one has one of its functions, or if there is no room.
    fn add(&mut self, library: Arc<Library>) -> Done {
        let taken = library.functions.keys().find(|name| self.functions.contains_key(&name.to_ascii_lowercase()));
        if let Some(name) = taken {
            return Err(Fail::of_bytes([b"ERR Function ", &**name, b" already exists"].concat()));
        }
        let bytes = self.bytes + library.bytes();
        let functions = self.functions.len() + library.functions.len();
        if self.by_name.len() == LIBRARIES_MAX || functions > FUNCTIONS_MAX || bytes > LIBRARIES_BYTES_MAX {
            return Err(Fail::new(format!(
                "ERR the limit of functions is reached: {LIBRARIES_MAX} libraries with {FUNCTIONS_MAX} functions and \
                 {LIBRARIES_BYTES_MAX} bytes together. Delete a library with FUNCTION DELETE first"
            )));
        }
        for (name, function) in &library.functions {
            // Of two names that differ only in their case, the first counts.
            self.functions.entry(name.to_ascii_lowercase()).or_insert_with(|| function.script.clone());
        }
        self.bytes = bytes;
        self.by_name.insert(library.name.clone(), library);
        Ok(())
    }

    /// Removes a library. Returns `true` if it existed.
    fn remove(&mut self, name: &str) -> bool {
        let Some(library) = self.by_name.remove(name) else {
            return false;
        };
        self.bytes -= library.bytes();
        library.functions.keys().for_each(|name| drop(self.functions.remove(&name.to_ascii_lowercase())));
        true
    }
}

/// Policy of `FUNCTION RESTORE` for libraries that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::redis) enum Policy {
    Append,
    Replace,
    Flush,
}

/// Libraries of all tenants.
pub(in crate::redis) struct Functions {
    /// By the prefix of the tenant; the error if those in the document cannot be read.
    of_tenants: RwLock<HashMap<String, Done<Arc<Libraries>>>>,
    /// Held while libraries are changed, until the change is durable.
    changing: Mutex<()>,
    is_restored: watch::Sender<bool>,
}

impl Default for Functions {
    fn default() -> Self {
        Self { of_tenants: RwLock::default(), changing: Mutex::default(), is_restored: watch::Sender::new(false) }
    }
}

impl Functions {
    pub(super) fn are_restored(&self) -> bool {
        *self.is_restored.borrow()
    }

    /// Returns `true` if the functions of a tenant are restored: those of others may take longer.
    pub(super) fn are_restored_of(&self, tenant: Tenant<'_>) -> bool {
        self.are_restored() || self.of_tenants.read().contains_key(prefix(tenant))
    }

    /// Waits until the functions of a tenant are restored after startup.
    pub(super) async fn restored(&self, tenant: Tenant<'_>) {
        let mut restored = self.is_restored.subscribe();
        let is_restored = |all: &bool| *all || self.are_restored_of(tenant);
        // Both the end of the restore and the time limit are the end of the wait.
        drop(tokio::time::timeout(RESTORE_WAIT_MAX, restored.wait_for(is_restored)).await);
    }

    /// Returns the libraries of a tenant.
    pub(in crate::redis) fn of(&self, tenant: Tenant<'_>) -> Done<Arc<Libraries>> {
        if !self.are_restored_of(tenant) {
            return Err(RESTORING);
        }
        self.of_tenants.read().get(prefix(tenant)).cloned().unwrap_or_else(|| Ok(Arc::default()))
    }

    /// Loads a library, and returns its name.
    pub(in crate::redis) async fn load(
        &self,
        (broker, lanes): (&Broker, &Arc<Lanes>),
        tenant: Option<TenantName>,
        text: &[u8],
        is_replacement: bool,
    ) -> Done<Box<str>> {
        let (name, code) = Library::header(text)?;
        if !is_replacement {
            self.of(tenant.as_ref())?.check_name(&name)?;
        }
        let work = move || Library::load(name, code, LOAD_TIME_MAX);
        let library = Arc::new(run_in_lane(lanes, tenant.clone(), work).await?);
        let name = library.name.clone();
        let add = |all: &mut Libraries| {
            if is_replacement {
                all.remove(&library.name);
            }
            all.check_name(&library.name)?;
            all.add(library)
        };
        self.change(broker, tenant.as_ref(), add).await?;
        Ok(name)
    }

    pub(in crate::redis) async fn delete(&self, broker: &Broker, tenant: Tenant<'_>, name: &[u8]) -> Done {
        let delete = |all: &mut Libraries| {
            let is_deleted = std::str::from_utf8(name).is_ok_and(|name| all.remove(name));
            if is_deleted { Ok(()) } else { Err(Fail::new("ERR Library not found")) }
        };
        self.change(broker, tenant, delete).await
    }

    pub(in crate::redis) async fn flush(&self, broker: &Broker, tenant: Tenant<'_>) -> Done {
        self.change(broker, tenant, |all| {
            *all = Libraries::default();
            Ok(())
        })
        .await
    }

    /// Adds the libraries of a payload of `FUNCTION DUMP`.
    pub(in crate::redis) async fn restore(
        &self,
        (broker, lanes): (&Broker, &Arc<Lanes>),
        tenant: Option<TenantName>,
        payload: &[u8],
        policy: Policy,
    ) -> Done {
        let texts = dumped::texts(payload)?;
        let work = move || {
            let mut added = Libraries::default();
            for text in texts {
                let (name, code) = Library::header(&text)?;
                added.check_name(&name)?;
                added.add(Arc::new(Library::load(name, code, LOAD_TIME_MAX)?))?;
            }
            Ok(added)
        };
        let added = run_in_lane(lanes, tenant.clone(), work).await?;
        let join = |all: &mut Libraries| {
            if policy == Policy::Flush {
                *all = added;
                return Ok(());
            }
            for library in added.all() {
                if policy == Policy::Replace {
                    all.remove(&library.name);
                } else if all.by_name.contains_key(&library.name) {
                    return Err(Fail::new(format!("ERR Library {} already exists", library.name)));
                }
            }
            added.all().try_for_each(|library| all.add(library.clone()))
        };
        self.change(broker, tenant.as_ref(), join).await
    }

    /// Changes the libraries of a tenant. Clients see the change once it is durable.
    async fn change(&self, broker: &Broker, tenant: Tenant<'_>, change: impl FnOnce(&mut Libraries) -> Done) -> Done {
        let _turn = self.changing.lock().await;
        let before = self.of(tenant)?;
        let mut after = Libraries::clone(&before);
        change(&mut after)?;
        if before.by_name.is_empty() && after.by_name.is_empty() {
            return Ok(());
        }
        let prefix = prefix(tenant);
        let payload = (!after.by_name.is_empty()).then(|| after.payload().into());
        broker.documents.put(DOCUMENT, &format!("{prefix}{NAME}"), payload).await?;
        self.of_tenants.write().insert(prefix.to_owned(), Ok(Arc::new(after)));
        Ok(())
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> Written {
        let of_tenants = self.of_tenants.read();
        let sum = |of: fn(&Libraries) -> usize| of_tenants.values().flatten().map(|all| of(all) as u64).sum();
        out.gauge("thalweg_redis_libraries", "Libraries of functions", sum(|all| all.by_name.len()))?;
        out.gauge("thalweg_redis_functions", "Functions that Redis clients may call", sum(Libraries::function_count))?;
        out.gauge("thalweg_redis_library_bytes", "Bytes of all libraries", sum(|all| all.bytes))
    }
}

/// Runs work on a thread for scripts.
async fn run_in_lane<T: Send + 'static>(
    lanes: &Arc<Lanes>,
    owner: Option<TenantName>,
    work: impl FnOnce() -> Done<T> + Send + 'static,
) -> Done<T> {
    lanes.run(owner, work)?.await.unwrap_or(Err(CLOSED))
}

/// Restores the functions of all tenants from their documents.
pub(in crate::redis) async fn restore_all(scripts: Weak<super::Scripts>, broker: Weak<Broker>) {
    while let (Some(scripts), Some(broker)) = (scripts.upgrade(), broker.upgrade()) {
        match broker.documents.list(DOCUMENT, "").await {
            Ok(documents) => {
                let each = |(name, payload)| restore(&scripts, name, payload);
                stream::iter(documents).for_each_concurrent(RESTORES_MAX, each).await;
                scripts.functions.is_restored.send_replace(true);
                return;
            }
            Err(error) => tracing::warn!(%error, "functions are not restored yet"),
        }
        drop((scripts, broker));
        tokio::time::sleep(RETRY).await;
    }
}

/// Restores the functions of a tenant.
async fn restore(scripts: &super::Scripts, name: String, payload: Bytes) {
    let prefix = name.strip_suffix(NAME).unwrap_or(&name);
    let owner = TenantName::of_inner(&name);
    let restored = loop {
        let payload = payload.clone();
        match run_in_lane(&scripts.lanes, owner.clone(), move || Ok(restored(&payload))).await {
            Ok(restored) => break restored,
            Err(fail) if fail == CLOSED => return,
            // Clients have filled the queue of scripts, which run.
            Err(fail) => {
                let error = String::from_utf8_lossy(&fail.text);
                tracing::warn!(document = name, %error, "libraries of functions are not restored yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    if let Err(fail) = &restored {
        let error = String::from_utf8_lossy(&fail.text);
        tracing::error!(document = name, %error, "libraries of functions cannot be restored");
    }
    scripts.functions.of_tenants.write().insert(prefix.to_owned(), restored.map(Arc::new));
    // Wakes the clients of this tenant, who wait for no others.
    scripts.functions.is_restored.send_replace(false);
}

/// Reads the libraries of a document. One that cannot be run is kept without functions.
fn restored(payload: &[u8]) -> Done<Libraries> {
    let mut all = Libraries::default();
    for text in dumped::texts(payload)? {
        let (name, code) = Library::header(&text)?;
        let library = Library::load(name.clone(), code.clone(), AGAIN_TIME_MAX).unwrap_or_else(|fail| {
            let error = String::from_utf8_lossy(&fail.text);
            tracing::error!(library = &*name, %error, "a library of functions cannot be run: load it again");
            Library { name, code, functions: BTreeMap::new() }
        });
        all.add(Arc::new(library))?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(text: &str) -> Done<Library> {
        let (name, code) = Library::header(text.as_bytes())?;
        Library::load(name, code, LOAD_TIME_MAX)
    }

    fn refused(text: &str) -> String {
        let fail = library(text).err().unwrap_or_else(|| panic!("{text} is loaded"));
        String::from_utf8_lossy(&fail.text).into_owned()
    }

    /// Replies of redis-server 7.0.15.
    #[test]
    fn libraries_are_refused_in_the_words_of_redis() {
        let names = "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one \
                     character long";
        let headers = [
            ("return 1", "ERR Missing library metadata"),
            ("#!lua", "ERR Invalid library metadata"),
            ("#!lua\n", "ERR Library name was not given"),
            ("#!lua \nx", "ERR Library name was not given"),
            ("#!lua name=\n", names),
            ("#!lua name=a-b\nx", names),
            ("#!lua name=a name=b\n", "ERR Invalid metadata value, name argument was given multiple times"),
            ("#!lua name=a foo=b\n", "ERR Invalid metadata value given: foo=b"),
            ("#!js name=a\n", "ERR Engine 'js' not found"),
            ("#! name=a\n", "ERR Engine '' not found"),
            ("#!LUA NAME=a\n", "ERR No functions registered"),
            ("#!lua \"name=a\nx", "ERR Invalid library metadata"),
            ("#!lua name=lib\nx y", "ERR Error compiling function: user_function:2: '=' expected near 'y'"),
        ];
        for (text, error) in headers {
            assert_eq!(refused(text), error, "{text}");
        }
        let read = "Script attempted to access nonexistent global variable";
        let bodies = [
            ("foo()", &*format!("user_function:2: {read} 'foo'")),
            ("redis.call('a')", &format!("user_function:2: {read} 'call'")),
            ("local x = string.format('%d', 1)", &format!("user_function:2: {read} 'string'")),
            ("local x = _G", &format!("user_function:2: {read} '_G'")),
            ("redis.setresp(3)", &format!("user_function:2: {read} 'setresp'")),
            ("x = 1", "user_function:2: Attempt to modify a readonly table"),
            ("redis.x = 1", "user_function:2: Attempt to modify a readonly table"),
            ("\n\nlocal x = nil + 1", "user_function:4: attempt to perform arithmetic on a nil value"),
            ("redis.log(1)", "redis.log() requires two arguments or more."),
            ("while true do end", "FUNCTION LOAD timeout"),
            ("local x = ('a'):rep(4096):find(('a-'):rep(15) .. 'b')", "FUNCTION LOAD timeout"),
            ("redis.register_function()", "wrong number of arguments to redis.register_function"),
            ("redis.register_function(1, 2, 3)", "wrong number of arguments to redis.register_function"),
            (
                "redis.register_function('a')",
                "calling redis.register_function with a single argument is only applicable to Lua table (representing \
                 named arguments).",
            ),
            ("redis.register_function('a', 'b')", "second argument to redis.register_function must be a function"),
            (
                "redis.register_function({}, function() end)",
                "first argument to redis.register_function must be a string",
            ),
            ("redis.register_function('a-b', function() end)", &names[4..]),
            ("redis.register_function('', function() end)", &names[4..]),
            (
                "redis.register_function('f', function() end) redis.register_function('f', function() end)",
                "Function already exists in the library",
            ),
            ("redis.register_function{}", "redis.register_function must get a function name argument"),
            ("redis.register_function{function_name = 'a'}", "redis.register_function must get a callback argument"),
            (
                "redis.register_function{function_name = {}}",
                "function_name argument given to redis.register_function must be a string",
            ),
            (
                "redis.register_function{callback = 1}",
                "callback argument given to redis.register_function must be a function",
            ),
            (
                "redis.register_function{flags = 1}",
                "flags argument to redis.register_function must be a table representing function flags",
            ),
            ("redis.register_function{flags = {'x'}}", "unknown flag given"),
            ("redis.register_function{flags = {{}}}", "unknown flag given"),
            (
                "redis.register_function{description = {}}",
                "description argument given to redis.register_function must be a string",
            ),
            ("redis.register_function{foo = 1}", "unknown argument given to redis.register_function"),
            ("redis.register_function{1}", "unknown argument given to redis.register_function"),
            (
                "redis.register_function{[{}] = 1}",
                "named argument key given to redis.register_function is not a string",
            ),
        ];
        for (body, error) in bodies {
            let text = format!("#!lua name=lib\n{body}");
            assert_eq!(refused(&text), format!("ERR Error registering functions: ERR {error}"), "{text}");
        }
    }

    #[test]
    fn libraries_register_functions_with_flags_and_descriptions() {
        let text = "#!lua 'name=lib'\nredis.register_function(1, function() end)\nredis.log(redis.LOG_NOTICE, \
                    redis.REDIS_VERSION)\nredis.register_function{FUNCTION_NAME = 'a', callback = function() end, \
                    flags = {'NO-writes', 'no-writes', 'allow-oom'}, description = 5}";
        let library = library(text).expect("valid");
        assert_eq!(&*library.name, "lib");
        let found: Vec<_> = library
            .functions
            .iter()
            .map(|(name, function)| (&**name, function.script.flags, function.description.as_deref()))
            .collect();
        assert_eq!(found, [(&b"1"[..], Some(0), None), (b"a", Some(3), Some(&b"5"[..]))]);
    }

    #[test]
    fn libraries_are_bounded_and_names_of_functions_are_unique() {
        let mut all = Libraries::default();
        let text = |name: &str, function: &str, bytes: usize| {
            let code = format!("redis.register_function('{function}', function() end)");
            format!("#!lua name={name}\n{code} --{}", "x".repeat(bytes))
        };
        all.add(Arc::new(library(&text("a", "f", 0)).expect("valid"))).expect("room");
        let taken = all.add(Arc::new(library(&text("b", "F", 0)).expect("valid"))).expect_err("taken");
        assert_eq!(&*taken.text, b"ERR Function F already exists");
        let full = all.add(Arc::new(library(&text("b", "g", LIBRARIES_BYTES_MAX)).expect("valid")));
        assert!(full.expect_err("full").text.starts_with(b"ERR the limit of functions is reached"));
        assert!(all.find(b"F").is_some() && all.remove("a") && !all.remove("a"));
        assert_eq!((all.bytes, all.function_count(), all.find(b"f").is_none()), (0, 0, true));
        let flood = "for i = 1, 1e9 do redis.register_function('f' .. i, function() end) end";
        let refused = refused(&format!("#!lua name=a\n{flood}"));
        assert!(refused.starts_with("ERR Error registering functions: ERR "), "{refused}");
    }

    #[test]
    fn the_time_limit_of_a_load_includes_functions_of_lua() {
        let (name, code) =
            Library::header(b"#!lua name=a\nredis.register_function('f', function() end)").expect("valid");
        let late = Library::load(name, code, Duration::ZERO).err().expect("no time is left");
        assert!(late.text.ends_with(b"FUNCTION LOAD timeout"), "{late:?}");
    }

    #[tokio::test]
    async fn libraries_that_meet_a_full_queue_of_scripts_are_restored_later() {
        let scripts = Arc::new(super::super::Scripts::default());
        let mut document = Libraries::default();
        let text = "#!lua name=lib\nredis.register_function('f', function() end)";
        document.add(Arc::new(library(text).expect("valid"))).expect("room");
        let payload = Bytes::from(document.payload());
        let tenant = TenantName::parse("ann").expect("valid");
        // Scripts of others fill the queue until they may end.
        let (release, is_released) = std::sync::mpsc::channel::<()>();
        let is_released = Arc::new(parking_lot::Mutex::new(is_released));
        while let Ok(_result) = scripts.lanes.run(None, {
            let is_released = is_released.clone();
            move || assert!(is_released.lock().recv().is_err(), "nothing is sent")
        }) {}
        let name = format!("{}{NAME}", tenant.prefix());
        let mut restoring = std::pin::pin!(restore(&scripts, name, payload));
        let waits = tokio::time::timeout(Duration::from_millis(100), &mut restoring).await;
        assert!(waits.is_err(), "there is no room");
        assert!(scripts.functions.of(Some(&tenant)).is_err_and(|fail| fail == RESTORING));
        drop(release);
        restoring.await;
        // Its clients do not wait for other tenants.
        scripts.functions.restored(Some(&tenant)).await;
        assert_eq!(scripts.functions.of(Some(&tenant)).expect("restored").function_count(), 1);
        assert!(scripts.functions.of(None).is_err_and(|fail| fail == RESTORING));
    }
}
