//! A state of Lua in which scripts run: the libraries that Redis has, and a compiled function for each script that has
//! run in it. Each thread that runs scripts has one. A state keeps nothing of a run: globals and libraries cannot be
//! changed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};
use smallvec::SmallVec;

use super::functions::LIBRARIES_BYTES_MAX;
use super::functions::{AGAIN_TIME_MAX, Code, Registered};
use super::host::{Called, Host};
use super::running::Running;
use super::sha::{Sha, hex, sha_of};
use super::text::{FLAGS, Script};
use super::{bits, json, msgpack, packed, random, reply, strings};
use crate::redis::VERSION;
use crate::redis::errors::{Done, Fail};
use crate::redis::writer::Writer;

/// Maximum memory of a state in bytes. A script that needs more ends with an error.
pub(super) const STATE_BYTES_MAX: usize = 128 << 20;
/// Memory of a state in bytes above which all garbage is collected after a run.
const COLLECTED_BYTES: usize = STATE_BYTES_MAX / 4;
/// Maximum number of compiled functions of a state. Beyond it, those of evicted scripts are dropped, then all.
const COMPILED_MAX: usize = 1024;
/// Maximum number of libraries that are kept in a state. Beyond it, those that were deleted are dropped, then all.
const LIBRARIES_MAX: usize = 1024;
/// Maximum number of bytes that a function of the host builds at a time, outside of the memory of the state.
pub(super) const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Message of the error if it would build more.
pub(super) const NO_MEMORY: &str = "not enough memory";
/// Maximum number of bytes of a message that a script logs.
const LOGGED_BYTES_MAX: usize = 1024;
/// Memory of a straight script in bytes, in addition to this many times the size of its arguments and replies.
const ROOM_BYTES: usize = 1 << 20;
const ROOM_FACTOR: usize = 64;
/// Maximum number of bytes that the host converts without a limit of the state's memory: with one, the library makes a
/// protected call of Lua for each value. The limit is checked before the script continues.
const UNLIMITED_BYTES_MAX: usize = 64 << 10;
/// Number of keys and arguments up to which no table of them is created by the host.
const LISTED_MAX: usize = 128;
/// Maximum number of steps that a search for a pattern may take in functions of Lua, which nothing ends.
const NATIVE_STEPS_MAX: u32 = 1 << 20;
/// Instructions between two checks of whether a script is killed.
const HOOK_INSTRUCTIONS: u32 = 10_000;
/// Version as Redis encodes it in a number.
const VERSION_NUMBER: u32 = 0x0007_000f;

/// Numbers with which the prelude calls the host for something else than a command.
const SET_RESP: i64 = 2;
const CHECK: i64 = 3;

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Script that runs in a state, if other clients may kill it.
pub(super) type Current = Rc<RefCell<Option<Arc<Running>>>>;

/// Returns the error for a script whose reply is too large. One that has changed data must not be repeated.
fn too_large(bytes_max: usize, is_alone: bool, has_written: bool) -> Fail {
    let changes = if has_written { "; the script has run and changed data" } else { "" };
    Fail::new(if is_alone {
        format!(
            "ERR the reply of the script has more than {bytes_max} bytes, a quarter of the free memory for replies \
             (response_memory_max): return less{changes}"
        )
    } else {
        format!(
            "ERR with the reply of the script, the reply to the transaction has more than {bytes_max} bytes: return \
             less{changes}"
        )
    })
}

/// State with the functions of its prelude.
pub(super) struct State {
    lua: Lua,
    run: Function,
    run_with: Function,
    loader: Loader,
    /// Functions of libraries, by the numbers of their texts.
    libraries: HashMap<u64, (Weak<Code>, Named), foldhash::fast::FixedState>,
    compiled: HashMap<Sha, (Weak<Script>, Function), foldhash::fast::FixedState>,
    /// Script that runs now, which other clients may kill.
    running: Current,
    has_hook: Cell<bool>,
}

/// Functions of the prelude that load libraries and run functions of them.
struct Loader {
    begin: Function,
    run: Function,
    end: Function,
    call: Function,
}

/// Functions by their names.
type Named = HashMap<Box<[u8]>, Function>;

/// Runs `with` with the state of this thread, which is created by its first use.
pub(super) fn with<R>(with: impl FnOnce(&mut State) -> R) -> Done<R> {
    STATE.with_borrow_mut(|slot| {
        // A panic drops the state.
        let mut state = match slot.take() {
            Some(state) => state,
            None => State::new().map_err(|error| broken(&error))?,
        };
        let result = with(&mut state);
        let used = state.lua.used_memory();
        if used <= COLLECTED_BYTES || (state.lua.gc_collect().is_ok() && state.lua.used_memory() <= COLLECTED_BYTES) {
            *slot = Some(state);
        }
        // Otherwise something of a script is still referenced: a new state replaces this one.
        Ok(result)
    })
}

/// Converts an error of Lua outside of a script.
fn broken(error: &mlua::Error) -> Fail {
    Fail::new(format!("ERR Lua failed: {error}"))
}

impl State {
    pub(super) fn new() -> mlua::Result<Self> {
        Self::with_native_steps(NATIVE_STEPS_MAX)
    }

    fn with_native_steps(native_steps_max: u32) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        lua.set_memory_limit(STATE_BYTES_MAX)?;
        let running = Rc::default();
        let (environment, run, run_with, loader): (Table, Function, Function, Table) =
            lua.load(include_str!("prelude.lua")).set_name("=prelude").call(host(&lua, &running, native_steps_max)?)?;
        lua.set_globals(environment)?;
        let loader = Loader {
            begin: loader.raw_get("begin")?,
            run: loader.raw_get("run")?,
            end: loader.raw_get("end_load")?,
            call: loader.raw_get("call")?,
        };
        let (compiled, libraries) = (HashMap::default(), HashMap::default());
        Ok(Self { lua, run, run_with, loader, libraries, compiled, running, has_hook: Cell::new(false) })
    }

    /// Runs the text of a library, and returns the functions that it registers.
    pub(super) fn load(&mut self, code: &Arc<Code>, time_max: Duration) -> Done<Vec<Registered>> {
        let chunk = compile(&self.lua, &code.text[code.from..], "@user_function", "function")?;
        self.loader.begin.call::<()>(chunk.clone()).map_err(|error| broken(&error))?;
        self.begin(Some(Arc::new(Running::load(time_max))));
        let result = self.loader.run.call::<(bool, Value)>(chunk);
        self.end();
        let registered: Table = self.loader.end.call(()).map_err(|error| broken(&error))?;
        let why = match result {
            Ok((true, _)) => {
                let (named, registered) = read_registered(&registered).map_err(|error| broken(&error))?;
                if self.libraries.len() >= LIBRARIES_MAX {
                    self.libraries.retain(|_, (code, _)| code.strong_count() > 0);
                }
                if self.libraries.len() >= LIBRARIES_MAX {
                    self.libraries.clear();
                }
                self.libraries.insert(code.id, (Arc::downgrade(code), named));
                return Ok(registered);
            }
            Ok((false, Value::Table(failure))) => match failure.raw_get("err") {
                Ok(Value::String(text)) => text.as_bytes().to_vec(),
                _ => b"ERR unknown error".to_vec(),
            },
            Ok((false, failure)) => match opened(&self.lua, &failure) {
                Ok(Value::String(text)) => [b"ERR ", &*text.as_bytes()].concat(),
                _ => b"ERR unknown error".to_vec(),
            },
            Err(error) => format!("ERR {error}").into_bytes(),
        };
        Err(Fail::of_bytes([b"ERR Error registering functions: ", &*why].concat()))
    }

    /// Returns a function of a library, which is loaded if no function of it was called in this state.
    fn of_library(&mut self, code: &Arc<Code>, name: &[u8]) -> Done<Function> {
        if !self.libraries.contains_key(&code.id) {
            self.load(code, AGAIN_TIME_MAX)?;
        }
        let functions = self.libraries.get(&code.id).map(|(_, functions)| functions);
        functions.and_then(|functions| functions.get(name)).cloned().ok_or(Fail::new("ERR Function not found"))
    }

    /// Returns the function of a script.
    fn function(&mut self, script: &Arc<Script>) -> Done<Function> {
        if let Some(code) = &script.library {
            return self.of_library(code, &script.name);
        }
        if let Some((_, function)) = self.compiled.get(&script.sha) {
            return Ok(function.clone());
        }
        let function = compile(&self.lua, &script.text[script.from..], "@user_script", "script (new function)")?;
        if self.compiled.len() >= COMPILED_MAX {
            self.compiled.retain(|_, (script, _)| script.strong_count() > 0);
        }
        if self.compiled.len() >= COMPILED_MAX {
            self.compiled.clear();
        }
        self.compiled.insert(script.sha, (Arc::downgrade(script), function.clone()));
        Ok(function)
    }

    /// Checks that a script can be compiled.
    pub(super) fn check(&mut self, script: &Arc<Script>) -> Done {
        self.function(script).map(drop)
    }

    /// Runs a script, and writes its reply.
    pub(super) fn run(
        &mut self,
        script: &Arc<Script>,
        (keys, args): (&[&[u8]], &[&[u8]]),
        host: &mut Host<'_, '_>,
        out: &mut Writer,
    ) -> Done {
        let function = self.function(script)?;
        self.begin(host.running.clone());
        if !host.may_wait {
            let given: usize = keys.iter().chain(args).map(|bytes| bytes.len()).sum();
            let used = self.lua.used_memory();
            set_room(&self.lua, used + ROOM_BYTES, given).map_err(|error| broken(&error))?;
        }
        let result = self.call(&function, script.library.is_some(), (keys, args), host);
        self.end();
        if !host.may_wait {
            self.lua.set_memory_limit(STATE_BYTES_MAX).map_err(|error| broken(&error))?;
            if host.need.is_none() && is_out_of_memory(&result) {
                // A thread for scripts has more, if the script can be begun again.
                host.need_thread();
            }
        }
        let at = out.bytes.len();
        let written = match result {
            Ok((true, value)) => reply::write(&self.lua, &value, host.is_resp3, out),
            Ok((false, value)) => reply::failure(&value, &script.name).map(|fail| out.error(&fail)),
            Err(error) => Err(error),
        };
        written.map_err(|error| {
            out.bytes.truncate(at);
            match error {
                mlua::Error::RuntimeError(why) if why == reply::TOO_MANY => Fail::new(format!("ERR {why}")),
                error => broken(&error),
            }
        })?;
        out.check().map_err(|_too_large| too_large(out.bytes_max, host.may_repeat, host.has_written))
    }

    /// Notes what runs now, which may be ended.
    fn begin(&self, running: Option<Arc<Running>>) {
        if running.is_none() {
            return;
        }
        *self.running.borrow_mut() = running;
        if !self.has_hook.replace(true) {
            self.set_hook(HookTriggers::new().every_nth_instruction(HOOK_INSTRUCTIONS));
        }
    }

    fn end(&self) {
        let was = self.running.borrow_mut().take();
        if was.is_some_and(|running| running.ended_by().is_some()) {
            self.set_hook(HookTriggers::new().every_nth_instruction(HOOK_INSTRUCTIONS));
        }
    }

    /// Calls the hook at these times. It ends a script that is killed: then each line of it fails, so that it cannot
    /// catch the error and continue.
    fn set_hook(&self, triggers: HookTriggers) {
        let running = self.running.clone();
        let set = self.lua.set_global_hook(triggers, move |lua, _| {
            let running = running.borrow();
            let Some(running) = running.as_ref() else {
                return Ok(VmState::Continue);
            };
            match running.ended_by() {
                None => Ok(VmState::Continue),
                Some(why) => end_at_every_line(lua, format!("ERR {why}").into_bytes()),
            }
        });
        if set.is_err() {
            self.has_hook.set(false);
        }
    }

    fn call(
        &self,
        function: &Function,
        is_of_library: bool,
        (keys, args): (&[&[u8]], &[&[u8]]),
        host: &mut Host<'_, '_>,
    ) -> mlua::Result<(bool, Value)> {
        let mut writer = host.writer();
        let mut buffer = Vec::new();
        self.lua.scope(|scope| {
            let size = keys.iter().chain(args).map(|bytes| bytes.len()).sum();
            let command = unlimited(&self.lua, 0, || {
                scope.create_function_mut(|lua: &Lua, args: MultiValue| {
                    answer(lua, &args, host, &mut writer, &mut buffer)
                })
            })?;
            if !is_of_library && keys.len() + args.len() <= LISTED_MAX {
                let mut given = MultiValue::with_capacity(keys.len() + args.len() + 3);
                given.push_back(Value::Function(command));
                given.push_back(Value::Function(function.clone()));
                given.push_back(Value::Integer(keys.len() as i64));
                unlimited(&self.lua, size, || {
                    for bytes in keys.iter().chain(args) {
                        given.push_back(Value::String(self.lua.create_string(bytes)?));
                    }
                    Ok(())
                })?;
                return self.run.call(given);
            }
            let list = |all: &[&[u8]]| -> mlua::Result<Table> {
                let table = self.lua.create_table_with_capacity(all.len(), 0)?;
                for bytes in all {
                    table.raw_push(self.lua.create_string(bytes)?)?;
                }
                Ok(table)
            };
            let run = if is_of_library { &self.loader.call } else { &self.run_with };
            run.call((command, function, list(keys)?, list(args)?))
        })
    }
}

/// Converts values of this many bytes for a script, without a limit of the state's memory if they are few. Fails if the
/// state is above its limit after that.
fn unlimited<R>(lua: &Lua, size: usize, convert: impl FnOnce() -> mlua::Result<R>) -> mlua::Result<R> {
    if size > UNLIMITED_BYTES_MAX {
        return convert();
    }
    let limit = lua.set_memory_limit(0)?;
    let converted = convert();
    lua.set_memory_limit(limit)?;
    // A script that stores values in tables that are large already makes no allocation of its own that would fail.
    if limit > 0 && lua.used_memory() > limit {
        return Err(mlua::Error::MemoryError(NO_MEMORY.to_owned()));
    }
    converted
}

/// Limits the memory of a straight script to `room`, and what it may need for what it is given: it must not take long,
/// and what takes much memory does.
fn set_room(lua: &Lua, room: usize, given: usize) -> mlua::Result<()> {
    let room = given.saturating_mul(ROOM_FACTOR).saturating_add(room);
    lua.set_memory_limit(room.min(STATE_BYTES_MAX)).map(drop)
}

/// Adds what a straight script may need for a reply.
fn add_room(lua: &Lua, given: usize) -> mlua::Result<()> {
    let room = lua.set_memory_limit(STATE_BYTES_MAX)?;
    set_room(lua, room, given)
}

/// Returns `true` if a script ended because it had no memory.
fn is_out_of_memory(result: &mlua::Result<(bool, Value)>) -> bool {
    match result {
        Ok((false, Value::String(text))) => text.as_bytes().ends_with(NO_MEMORY.as_bytes()),
        Ok((false, Value::Table(table))) => match table.raw_get("err") {
            Ok(Value::String(text)) => text.as_bytes().ends_with(NO_MEMORY.as_bytes()),
            _ => false,
        },
        Ok((false, Value::Error(error))) => is_memory_error(error),
        Ok(_) => false,
        Err(error) => is_memory_error(error),
    }
}

fn is_memory_error(error: &mlua::Error) -> bool {
    let is_memory = |error: &mlua::Error| matches!(error, mlua::Error::MemoryError(_));
    error.chain().filter_map(|error| error.downcast_ref::<mlua::Error>()).any(is_memory)
}

/// Ends a script at this line and at all later ones. Each coroutine has a hook of its own, which is set when it comes
/// here.
fn end_at_every_line(lua: &Lua, text: Vec<u8>) -> mlua::Result<VmState> {
    let again = text.clone();
    lua.set_global_hook(HookTriggers::EVERY_LINE, move |lua, _| end_at_every_line(lua, again.clone()))?;
    Err(raise(text))
}

/// Returns what a library has registered: rows of a name, flags, the function, and a description.
fn read_registered(rows: &Table) -> mlua::Result<(Named, Vec<Registered>)> {
    let mut named = Named::new();
    let mut registered = Vec::new();
    let mut bytes = 0;
    for row in rows.sequence_values::<Table>() {
        let row = row?;
        let name: mlua::LuaString = row.raw_get(1)?;
        let description: Option<mlua::LuaString> = row.raw_get(4)?;
        // Lua keeps a text once that many functions share. The copies here are not in its memory.
        bytes += name.as_bytes().len() + description.as_ref().map_or(0, |text| text.as_bytes().len());
        if bytes > LIBRARIES_BYTES_MAX {
            return Err(raise(
                format!("ERR the names and descriptions of a library have at most {LIBRARIES_BYTES_MAX} bytes")
                    .into_bytes(),
            ));
        }
        let name: Box<[u8]> = (*name.as_bytes()).into();
        named.insert(name.clone(), row.raw_get(3)?);
        registered.push(Registered {
            name,
            description: description.map(|text| (*text.as_bytes()).into()),
            flags: row.raw_get(2)?,
        });
    }
    Ok((named, registered))
}

/// Compiles a text, which must not be compiled code.
fn compile(lua: &Lua, text: &[u8], name: &str, what: &str) -> Done<Function> {
    let compiled = lua.load(text).set_name(name).set_mode(mlua::chunk::ChunkMode::Text).into_function();
    compiled.map_err(|error| {
        let why = match &error {
            mlua::Error::SyntaxError { message, .. } => message.clone(),
            error => error.to_string(),
        };
        Fail::new(format!("ERR Error compiling {what}: {why}"))
    })
}

/// Error that a function of the host raises.
#[derive(Debug)]
struct Raised {
    text: Vec<u8>,
    /// `true` if scripts see a table, as for errors of commands, and not the text.
    is_table: bool,
}

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for Raised {}

/// Returns the error for `redis.call` and others that raise errors as tables.
pub(super) fn raise(text: Vec<u8>) -> mlua::Error {
    mlua::Error::external(Raised { text, is_table: true })
}

/// Returns what an error of the host is for scripts.
fn opened(lua: &Lua, error: &Value) -> mlua::Result<Value> {
    let Value::Error(error) = error else {
        return Ok(error.clone());
    };
    match error.chain().find_map(|error| error.downcast_ref::<Raised>()) {
        Some(Raised { text, is_table: true }) => Ok(Value::Table(reply::error_table(lua, text)?)),
        Some(Raised { text, .. }) => Ok(Value::String(lua.create_string(text)?)),
        None => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            let line =
                ["runtime error: ", "memory error: "].iter().find_map(|word| line.strip_prefix(word)).unwrap_or(line);
            Ok(Value::String(lua.create_string(line)?))
        }
    }
}

/// Mark of the prelude, with which `redis.call` does something else. No script has this value.
const MARK: usize = 1;

fn mark() -> Value {
    Value::LightUserData(mlua::LightUserData(std::ptr::without_provenance_mut(MARK)))
}

/// Returns one value.
fn only(value: Value) -> MultiValue {
    [value].into_iter().collect()
}

/// Returns an error that the prelude may raise.
fn both(error: Value) -> MultiValue {
    [error, Value::Boolean(true)].into_iter().collect()
}

/// Runs a command for a script, and returns its reply; with the mark also whether it is an error.
fn answer(
    lua: &Lua,
    args: &MultiValue,
    host: &mut Host<'_, '_>,
    writer: &mut Writer,
    buffer: &mut Vec<u8>,
) -> mlua::Result<MultiValue> {
    let does = match (args.front(), args.get(1)) {
        (Some(Value::LightUserData(given)), Some(Value::Integer(does))) if given.0.addr() == MARK => Some(*does),
        _ => None,
    };
    let raised = |text: &[u8]| match does {
        None => Err(raise(text.to_vec())),
        Some(_) => Ok(both(Value::Table(reply::error_table(lua, text)?))),
    };
    let given = if does.is_some() { 2 } else { 0 };
    if does == Some(SET_RESP) {
        let version = match args.len() {
            3 => number(args, 2, "setresp").unwrap_or_default(),
            _ => return raised(b"ERR redis.setresp() requires one argument."),
        };
        return match host.set_resp(version) {
            Ok(()) => Ok(MultiValue::new()),
            Err(fail) => raised(&fail.text),
        };
    }
    let ends = match arguments(args.iter().skip(given), buffer) {
        Ok(ends) => ends,
        Err(why) => return raised(format!("ERR {why}").as_bytes()),
    };
    let mut from = 0;
    let word = |end: &usize| {
        let word = &buffer[from..*end];
        from = *end;
        word
    };
    let words: SmallVec<[&[u8]; 8]> = ends.iter().map(word).collect();
    if does == Some(CHECK) {
        return match host.may_run(&words) {
            Ok(may) => Ok(only(Value::Boolean(may))),
            Err(fail) => raised(&fail.text),
        };
    }
    writer.bytes.clear();
    match host.call(&words, writer) {
        Called::Answer if writer.bytes.first() == Some(&b'-') => {
            let line = writer.bytes.strip_suffix(b"\r\n").unwrap_or(&writer.bytes);
            raised(&line[1..])
        }
        Called::Answer => {
            if !host.may_wait {
                add_room(lua, writer.bytes.len())?;
            }
            unlimited(lua, writer.bytes.len(), || Ok(only(reply::to_lua(lua, &writer.bytes)?.0)))
        }
        Called::Fail(fail) => raised(&fail.text),
    }
}

/// Copies the arguments of a command, one after the other. Returns the end of each.
fn arguments<'a>(
    args: impl Iterator<Item = &'a Value>,
    buffer: &mut Vec<u8>,
) -> Result<SmallVec<[usize; 8]>, &'static str> {
    buffer.clear();
    let mut ends = SmallVec::new();
    for arg in args {
        if let Value::String(text) = arg
            && buffer.len() + text.as_bytes().len() > OUTPUT_BYTES_MAX
        {
            return Err("the arguments have more than 64 MiB");
        }
        match arg {
            Value::String(text) => buffer.extend_from_slice(&text.as_bytes()),
            Value::Integer(number) => reply::push_number(*number as f64, buffer),
            Value::Number(number) => reply::push_number(*number, buffer),
            _ => return Err("Lua redis lib command arguments must be strings or integers"),
        }
        ends.push(buffer.len());
    }
    if ends.is_empty() {
        return Err("Please specify at least one argument for this redis lib call");
    }
    Ok(ends)
}

/// Result of a function of the host: its values, or the message of an error.
pub(super) type Given = Result<MultiValue, String>;

/// Creates a function whose errors are texts with the line of the script, as those of `luaL_error` are.
pub(super) fn function(
    lua: &Lua,
    of: impl Fn(&Lua, &MultiValue) -> mlua::Result<Given> + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, args: MultiValue| {
        of(lua, &args)?.map_err(|message| {
            // The level above this function, if it is one of a script, or the script that has called the prelude.
            let place = lua.inspect_stack(1, |frame| {
                let source = frame.source().short_src.unwrap_or_default().into_owned();
                frame.current_line().map(|line| (source, line))
            });
            let place = match place.flatten() {
                Some((source, _)) if source == "prelude" => match place_of_script(lua) {
                    (Some(source), Some(line)) => source.strip_prefix('@').map(|name| format!("{name}:{line}: ")),
                    _ => None,
                },
                Some((source, line)) => Some(format!("{source}:{line}: ")),
                None => None,
            };
            let place = place.unwrap_or_default();
            mlua::Error::external(Raised { text: format!("{place}{message}").into_bytes(), is_table: false })
        })
    })
}

/// Returns the one value as a result.
pub(super) fn one(value: Value) -> Given {
    Ok(only(value))
}

/// Returns the functions of the host that the prelude needs.
fn host(lua: &Lua, running: &Current, native_steps_max: u32) -> mlua::Result<Table> {
    let host = lua.create_table()?;
    host.raw_set("native_steps_max", native_steps_max)?;
    host.raw_set("strings", strings::library(lua, running)?)?;
    let running = running.clone();
    // Raises the error of a script that is killed.
    let check = move |_: &Lua, ()| match running.borrow().as_ref().and_then(|running| running.ended_by()) {
        None => Ok(()),
        Some(why) => Err(raise(format!("ERR {why}").into_bytes())),
    };
    host.raw_set("check", lua.create_function(check)?)?;
    host.raw_set("opened", lua.create_function(|lua, error: Value| opened(lua, &error))?)?;
    host.raw_set("mark", mark())?;
    host.raw_set("where", lua.create_function(|lua, ()| Ok(place_of_script(lua)))?)?;
    let text = |lua: &Lua, text: mlua::LuaString| lua.create_string(reply::error_text(&text.as_bytes()));
    host.raw_set("error_text", lua.create_function(text)?)?;
    random::add(lua, &host)?;
    let flags = lua.create_table()?;
    for (name, bit) in FLAGS {
        flags.raw_set(name, bit)?;
    }
    host.raw_set("flags", flags)?;
    host.raw_set("redis", redis(lua)?)?;
    host.raw_set("cjson", json::library(lua)?)?;
    host.raw_set("cmsgpack", msgpack::library(lua)?)?;
    host.raw_set("struct", packed::library(lua)?)?;
    host.raw_set("bit", bits::library(lua)?)?;
    Ok(host)
}

/// Returns the file and line of the script that called the prelude.
fn place_of_script(lua: &Lua) -> (Option<String>, Option<i64>) {
    let mut level = 1;
    loop {
        let found = lua.inspect_stack(level, |frame| {
            let source = frame.source();
            let name = source.source.as_deref().unwrap_or_default().to_owned();
            (name, frame.current_line())
        });
        match found {
            None => return (None, None),
            Some((name, Some(line))) if name != "=prelude" => return (Some(name), Some(line as i64)),
            Some(_) => level += 1,
        }
    }
}

/// Returns an argument as an integer.
pub(super) fn integer(args: &MultiValue, at: usize, of: &str) -> Result<i64, String> {
    number(args, at, of).map(|number| number as i64)
}

/// Returns an argument as a number; a text that is one counts.
pub(super) fn number(args: &MultiValue, at: usize, of: &str) -> Result<f64, String> {
    let given = args.get(at);
    let found = match given {
        Some(Value::Integer(number)) => Some(*number as f64),
        Some(Value::Number(number)) => Some(*number),
        Some(Value::String(text)) => crate::redis::commands::args::nearest_float(text.as_bytes().trim_ascii()),
        _ => None,
    };
    found.ok_or_else(|| wrong_type(given, at, of, "number"))
}

/// Returns an argument as text; a number counts.
pub(super) fn text(args: &MultiValue, at: usize, of: &str) -> Result<Vec<u8>, String> {
    match args.get(at) {
        Some(Value::String(text)) => Ok(text.as_bytes().to_vec()),
        Some(Value::Integer(number)) => Ok(number.to_string().into_bytes()),
        Some(Value::Number(number)) => Ok(json::digits(*number, 14).into_bytes()),
        given => Err(wrong_type(given, at, of, "string")),
    }
}

fn wrong_type(given: Option<&Value>, at: usize, of: &str, wanted: &str) -> String {
    let given = given.map_or("no value", type_of);
    format!("bad argument #{} to '{of}' ({wanted} expected, got {given})", at + 1)
}

/// Returns the type of a value, as Lua 5.1 names it.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) | Value::Number(_) => "number",
        value => value.type_name(),
    }
}

/// Returns the parts of the table `redis`, without the functions of commands.
fn redis(lua: &Lua) -> mlua::Result<Table> {
    let redis = lua.create_table()?;
    let sha1hex = |lua: &Lua, args: &MultiValue| {
        if args.len() != 1 {
            return Ok(Err("ERR wrong number of arguments".to_owned()));
        }
        let text = text(args, 0, "sha1hex").unwrap_or_default();
        Ok(one(Value::String(lua.create_string(hex(&sha_of(&text)))?)))
    };
    redis.raw_set("sha1hex", raising(lua, sha1hex)?)?;
    redis.raw_set("log", raising(lua, log)?)?;
    let set_repl = |_: &Lua, args: &MultiValue| {
        Ok(match (args.len(), args.front()) {
            (1, Some(Value::Integer(0..=3))) => Ok(MultiValue::new()),
            (1, _) => {
                Err("ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.".to_owned())
            }
            _ => Err("ERR redis.set_repl() requires one argument.".to_owned()),
        })
    };
    redis.raw_set("set_repl", raising(lua, set_repl)?)?;
    let constant = |value: bool| move |_: &Lua, _: &MultiValue| Ok(one(Value::Boolean(value)));
    redis.raw_set("replicate_commands", raising(lua, constant(true))?)?;
    redis.raw_set("breakpoint", raising(lua, constant(false))?)?;
    redis.raw_set("debug", raising(lua, |_, _| Ok(Ok(MultiValue::new())))?)?;
    redis.raw_set("REDIS_VERSION", VERSION)?;
    redis.raw_set("REDIS_VERSION_NUM", VERSION_NUMBER)?;
    let numbers = [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
    ];
    for (name, number) in numbers {
        redis.raw_set(name, number)?;
    }
    Ok(redis)
}

/// Creates a function whose errors are tables, as those of commands.
fn raising(lua: &Lua, of: impl Fn(&Lua, &MultiValue) -> mlua::Result<Given> + 'static) -> mlua::Result<Function> {
    lua.create_function(move |lua, args: MultiValue| of(lua, &args)?.map_err(|message| raise(message.into_bytes())))
}

/// Logs a message of a script (`luaLogCommand` of Redis).
fn log(_lua: &Lua, args: &MultiValue) -> mlua::Result<Given> {
    if args.len() < 2 {
        return Ok(Err("ERR redis.log() requires two arguments or more.".to_owned()));
    }
    let Ok(level) = number(args, 0, "log") else {
        return Ok(Err("ERR First argument must be a number (log level).".to_owned()));
    };
    if !(0.0..=3.0).contains(&level) {
        return Ok(Err("ERR Invalid debug level.".to_owned()));
    }
    // A client must not be able to fill the log of the broker.
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return Ok(Ok(MultiValue::new()));
    }
    let mut message = Vec::new();
    for value in args.iter().skip(1) {
        let room = LOGGED_BYTES_MAX.saturating_sub(message.len());
        if room == 0 {
            break;
        }
        if !message.is_empty() {
            message.push(b' ');
        }
        match value {
            Value::String(text) => {
                let text = text.as_bytes();
                message.extend_from_slice(&text[..text.len().min(room)]);
            }
            Value::Integer(number) => message.extend_from_slice(number.to_string().as_bytes()),
            Value::Number(number) => message.extend_from_slice(json::digits(*number, 14).as_bytes()),
            _ => {}
        }
    }
    let message = String::from_utf8_lossy(&message);
    tracing::debug!(level, %message, "a script of a Redis client logs");
    Ok(Ok(MultiValue::new()))
}

#[cfg(test)]
impl State {
    /// Creates a state that leaves every search to the host.
    pub(super) fn without_native_searches() -> mlua::Result<Self> {
        Self::with_native_steps(0)
    }

    /// Runs a chunk as a script that may be ended. Returns its result, or the text of its error.
    pub(super) fn evaluate(&self, text: &str, args: &[&[u8]], running: Option<Arc<Running>>) -> mlua::Result<Vec<u8>> {
        let script = self.lua.load(text).set_name("@user_script").into_function()?;
        let args = args.iter().map(|arg| self.lua.create_string(arg)).collect::<mlua::Result<Vec<_>>>()?;
        self.begin(running);
        let call = self.lua.create_function(|_, ()| Ok(()))?;
        let mut given: MultiValue =
            [Value::Function(call), Value::Function(script), Value::Integer(0)].into_iter().collect();
        given.extend(args.into_iter().map(Value::String));
        let (is_done, value): (bool, Value) = self.run.call(given)?;
        self.end();
        match value {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
            Value::Table(failure) if !is_done => Ok(failure.raw_get::<mlua::LuaString>("err")?.as_bytes().to_vec()),
            value => Ok(format!("{value:?}").into_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_too_large_is_refused_with_its_limit() {
        let text = |fail: Fail| String::from_utf8_lossy(&fail.text).into_owned();
        let alone = text(too_large(1000, true, true));
        assert!(alone.contains("1000 bytes, a quarter of the free memory") && alone.ends_with("and changed data"));
        // A transaction may use all of a reply, whatever memory is free.
        let wanted = "ERR with the reply of the script, the reply to the transaction has more than 268435456 bytes: \
                      return less";
        assert_eq!(text(too_large(crate::redis::writer::ANSWER_BYTES_MAX, false, false)), wanted);
    }
}
