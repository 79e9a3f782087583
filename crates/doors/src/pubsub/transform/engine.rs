//! JavaScript engine for one function: QuickJS with limits on its memory, its stack and its time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::context::EvalOptions;
use rquickjs::{Context, Ctx, Function as JsFunction, Object, Runtime, Value};

use super::{Function, Input, OUTPUT_ATTRIBUTES_MAX, OUTPUT_BYTES_MAX, Output};

/// Maximum time of one function for one message; Google's limit.
pub const CALL_TIME_MAX: Duration = Duration::from_millis(500);
/// Maximum memory of one engine: its heap, including the message.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Maximum stack of the engine, within that of its thread.
const STACK_BYTES_MAX: usize = 256 << 10;
/// Maximum length of an engine's error message that is shown to users.
const TEXT_BYTES_MAX: usize = 500;
/// Maximum heap of an engine that is used again, so that objects that a function leaves behind are freed eventually.
const IDLE_BYTES_MAX: i64 = 1 << 20;

/// Reason for which a function has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Exception, or return value that is not a valid message.
    Failed(String),
    /// Exceeded time limit.
    TimedOut(String),
}

impl Fault {
    pub fn message(&self) -> &str {
        match self {
            Self::Failed(message) | Self::TimedOut(message) => message,
        }
    }
}

/// Compiled function. It may be called many times, but not after a failure, which leaves its state unknown.
pub struct Engine {
    // Before the runtime, which has to be dropped last.
    context: Context,
    runtime: Runtime,
    deadline: Rc<Cell<Instant>>,
    name: String,
}

impl Engine {
    /// Runs the code and looks up the function in it.
    pub fn new(function: &Function, until: Instant) -> Result<Self, Fault> {
        check_name(&function.name)?;
        let no_engine = |error: rquickjs::Error| Fault::Failed(format!("the engine cannot be started ({error})"));
        let runtime = Runtime::new().map_err(no_engine)?;
        runtime.set_memory_limit(MEMORY_BYTES_MAX);
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        let deadline = Rc::new(Cell::new(Instant::now()));
        let watched = deadline.clone();
        runtime.set_interrupt_handler(Some(Box::new(move || Instant::now() >= watched.get())));
        let context = Context::full(&runtime).map_err(no_engine)?;
        let engine = Self { context, runtime, deadline, name: function.name.clone() };
        engine.timed(until, |ctx| {
            ctx.eval_with_options::<Value<'_>, _>(function.code.as_str(), sloppy())
                .map_err(|error| format!("the code cannot be run: {}", thrown(&ctx, error)))?;
            let found: Value<'_> = ctx.eval_with_options(engine.name.as_str(), sloppy()).map_err(|error| {
                format!("the code does not define the function {}: {}", engine.name, thrown(&ctx, error))
            })?;
            if found.is_function() {
                Ok(())
            } else {
                Err(format!("{} is not a function, it is {}", engine.name, found.type_name()))
            }
        })?;
        Ok(engine)
    }

    /// Calls the function with a message. Returns the resulting message; `None` if it is filtered.
    pub fn call(&self, input: &Input, until: Instant) -> Result<Option<Output>, Fault> {
        let data = std::str::from_utf8(&input.data)
            .map_err(|error| Fault::Failed(format!("the data of the message is not UTF-8 ({error})")))?;
        self.timed(until, |ctx| {
            let returned = self.returned(&ctx, data, input).map_err(|error| thrown(&ctx, error))?;
            if returned.is_null() {
                return Ok(None);
            }
            let Some(returned) = returned.as_object().filter(|_| !returned.is_promise()) else {
                let what = returned.type_name();
                return Err(format!("the function returned {what}, not a message or null"));
            };
            let mut room = OUTPUT_BYTES_MAX;
            let data = data_of(&ctx, returned, &mut room)?;
            Ok(Some(Output { data, attributes: attributes_of(&ctx, returned, &mut room)? }))
        })
    }

    /// Returns `true` if the heap is small enough for the engine to be kept.
    pub fn is_small(&self) -> bool {
        self.runtime.memory_usage().malloc_size <= IDLE_BYTES_MAX
    }

    fn returned<'js>(&self, ctx: &Ctx<'js>, data: &str, input: &Input) -> rquickjs::Result<Value<'js>> {
        let message = Object::new(ctx.clone())?;
        message.set("data", data)?;
        let attributes = Object::new(ctx.clone())?;
        for (key, value) in &input.attributes {
            define(&attributes, key, value)?;
        }
        message.set("attributes", attributes)?;
        let metadata = Object::new(ctx.clone())?;
        let known = [
            ("message_id", &input.message_id),
            ("publish_time", &input.publish_time),
            ("ordering_key", &input.ordering_key),
        ];
        for (key, value) in known {
            if let Some(value) = value {
                metadata.set(key, value.as_str())?;
            }
        }
        let function: JsFunction<'js> = ctx.eval_with_options(self.name.as_str(), sloppy())?;
        function.call((message, metadata))
    }

    /// Runs `work` in the engine, for at most the time of one call, and not beyond `until`.
    fn timed<T>(&self, until: Instant, work: impl FnOnce(Ctx<'_>) -> Result<T, String>) -> Result<T, Fault> {
        let began = Instant::now();
        let deadline = until.min(began + CALL_TIME_MAX);
        self.deadline.set(deadline);
        let done = self.context.with(work);
        match done {
            Ok(done) => Ok(done),
            Err(_) if Instant::now() >= deadline => {
                let given = deadline.saturating_duration_since(began).as_millis();
                Err(Fault::TimedOut(format!("the function took longer than {given} ms")))
            }
            Err(message) => Err(Fault::Failed(message)),
        }
    }
}

/// Returns options for sloppy mode, in which browsers and Google's service run scripts.
fn sloppy() -> EvalOptions {
    let mut options = EvalOptions::default();
    options.strict = false;
    options
}

/// Defines a property, even if its name has a special meaning, such as `__proto__`.
fn define<'js>(object: &Object<'js>, key: &str, value: &str) -> rquickjs::Result<()> {
    use rquickjs::object::Property;
    object.prop(key, Property::from(value).writable().configurable().enumerable())
}

fn data_of<'js>(ctx: &Ctx<'js>, returned: &Object<'js>, room: &mut usize) -> Result<String, String> {
    let data: Value<'js> = returned.get("data").map_err(|error| thrown(ctx, error))?;
    match data.as_string() {
        Some(data) => text(data, "data", room),
        None => Err(format!("the function returned a message whose data is {}, not a string", data.type_name())),
    }
}

/// Returns the attributes of a returned message; empty if it has no attributes.
fn attributes_of<'js>(
    ctx: &Ctx<'js>,
    returned: &Object<'js>,
    room: &mut usize,
) -> Result<BTreeMap<String, String>, String> {
    let attributes: Value<'js> = returned.get("attributes").map_err(|error| thrown(ctx, error))?;
    if attributes.is_null() || attributes.is_undefined() {
        return Ok(BTreeMap::new());
    }
    let Some(attributes) = attributes.as_object().filter(|object| !object.is_array()) else {
        let what = attributes.type_name();
        return Err(format!("the function returned a message whose attributes are {what}, not an object"));
    };
    let mut found = BTreeMap::new();
    for property in attributes.props::<rquickjs::String<'js>, Value<'js>>() {
        let (key, value) = property.map_err(|error| thrown(ctx, error))?;
        if found.len() == OUTPUT_ATTRIBUTES_MAX {
            return Err(format!("the function returned a message with more than {OUTPUT_ATTRIBUTES_MAX} attributes"));
        }
        let key = text(&key, "the name of an attribute", room)?;
        let Some(value) = value.as_string() else {
            let what = value.type_name();
            return Err(format!("the function returned a message whose attribute {key} is {what}, not a string"));
        };
        let value = text(value, "an attribute", room)?;
        found.insert(key, value);
    }
    Ok(found)
}

/// Converts a string of the engine, which may have unpaired surrogates that UTF-8 cannot encode. Subtracts its bytes
/// from the room of its message.
fn text(string: &rquickjs::String<'_>, what: &str, room: &mut usize) -> Result<String, String> {
    let text = string
        .to_string()
        .map_err(|error| format!("the function returned {what} that cannot be encoded in UTF-8 ({error})"))?;
    *room = room
        .checked_sub(text.len())
        .ok_or_else(|| format!("the function returned a message of more than {OUTPUT_BYTES_MAX} bytes"))?;
    Ok(text)
}

/// Returns the message of an error; for an exception its own text.
fn thrown(ctx: &Ctx<'_>, error: rquickjs::Error) -> String {
    if !error.is_exception() {
        return shortened(error.to_string());
    }
    let value = ctx.catch();
    let said = match value.as_exception() {
        Some(exception) => {
            let name: Option<String> = exception.as_object().get("name").ok();
            let message = exception.message().unwrap_or_default();
            name.map(|name| format!("{name}: {message}")).unwrap_or(message)
        }
        None => match value.as_string() {
            Some(string) => string.to_string().unwrap_or_else(|error| error.to_string()),
            // An exception is null if there is no memory left to create it.
            None if value.is_null() => format!("it threw null, or has used all of its {} MiB", MEMORY_BYTES_MAX >> 20),
            None => format!("it threw {}", value.type_name()),
        },
    };
    // Clears an exception that was thrown while reading the first one.
    drop(ctx.catch());
    shortened(said)
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push_str("..");
    }
    text
}

/// Refuses an invalid identifier, because the function is looked up by evaluating its name.
fn check_name(name: &str) -> Result<(), Fault> {
    let is_first = |c: char| c.is_alphabetic() || c == '_' || c == '$';
    let mut chars = name.chars();
    if chars.next().is_some_and(is_first) && chars.all(|c| is_first(c) || c.is_numeric()) {
        Ok(())
    } else {
        Err(Fault::Failed(format!("'{}' is not a name of a function", shortened(name.to_owned()))))
    }
}
