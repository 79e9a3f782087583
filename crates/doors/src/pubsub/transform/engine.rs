//! One function in an engine of its own: QuickJS with a limit on its memory, its stack and its time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::context::EvalOptions;
use rquickjs::{Context, Ctx, Function as JsFunction, Object, Runtime, Value};

use super::{Function, Input, Output};

/// How long one function may take for one message; Google's limit.
pub const CALL_TIME_MAX: Duration = Duration::from_millis(500);
/// Memory of one engine: its heap with the message in it.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;
/// The stack of the engine, within that of its thread.
const STACK_BYTES_MAX: usize = 256 << 10;
/// What of a message of the engine is shown to users.
const TEXT_BYTES_MAX: usize = 500;
/// An engine whose heap has grown to more than this is not used again: what a function leaves there is not for ever.
const IDLE_BYTES_MAX: i64 = 1 << 20;

/// Why a function has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It threw, or what it returned is no message.
    Failed(String),
    /// It took longer than a limit.
    TimedOut(String),
}

impl Fault {
    pub fn message(&self) -> &str {
        match self {
            Self::Failed(message) | Self::TimedOut(message) => message,
        }
    }
}

/// A function that was compiled. It may be called many times, until it fails once: after that its state is unknown.
pub struct Engine {
    // Before the runtime, which has to be dropped last.
    context: Context,
    runtime: Runtime,
    deadline: Rc<Cell<Instant>>,
    name: String,
}

impl Engine {
    /// Runs the code and looks for the function in it.
    pub fn new(function: &Function, until: Instant) -> Result<Self, Fault> {
        check_name(&function.name)?;
        let no_engine = |error: rquickjs::Error| Fault::Failed(format!("no engine to run it in ({error})"));
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
            let found: Value<'_> = ctx
                .eval_with_options(engine.name.as_str(), sloppy())
                .map_err(|error| format!("function {} is not in the code: {}", engine.name, thrown(&ctx, error)))?;
            match found.is_function() {
                true => Ok(()),
                false => Err(format!("{} is not a function, it is {}", engine.name, found.type_name())),
            }
        })?;
        Ok(engine)
    }

    /// What the function makes of a message; `None` filters it.
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
            Ok(Some(Output { data: data_of(&ctx, returned)?, attributes: attributes_of(&ctx, returned)? }))
        })
    }

    /// Whether it is worth keeping: its heap is about as small as at first.
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

    /// Does something with the engine for as long as a call may take, and no longer than until that moment.
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

/// As scripts of browsers are run, and those of the service.
fn sloppy() -> EvalOptions {
    let mut options = EvalOptions::default();
    options.strict = false;
    options
}

/// Sets a property by its value, also where the name has a meaning of its own, as `__proto__` has.
fn define<'js>(object: &Object<'js>, key: &str, value: &str) -> rquickjs::Result<()> {
    use rquickjs::object::Property;
    object.prop(key, Property::from(value).writable().configurable().enumerable())
}

fn data_of<'js>(ctx: &Ctx<'js>, returned: &Object<'js>) -> Result<String, String> {
    let data: Value<'js> = returned.get("data").map_err(|error| thrown(ctx, error))?;
    match data.as_string() {
        Some(data) => text(data, "data"),
        None => Err(format!("the function returned a message whose data is {}, not a string", data.type_name())),
    }
}

/// Without attributes the message has none.
fn attributes_of<'js>(ctx: &Ctx<'js>, returned: &Object<'js>) -> Result<BTreeMap<String, String>, String> {
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
        let key = text(&key, "the name of an attribute")?;
        let Some(value) = value.as_string() else {
            let what = value.type_name();
            return Err(format!("the function returned a message whose attribute {key} is {what}, not a string"));
        };
        let value = text(value, "an attribute")?;
        found.insert(key, value);
    }
    Ok(found)
}

/// A string of the engine, which may have halves of characters that UTF-8 has no bytes for.
fn text(string: &rquickjs::String<'_>, what: &str) -> Result<String, String> {
    string.to_string().map_err(|error| format!("the function returned {what} that has no form in UTF-8 ({error})"))
}

/// What an error says: of an exception its own text.
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
            // So it is when there is no memory left for an exception.
            None if value.is_null() => format!("it threw null, or had used up its {} MiB", MEMORY_BYTES_MAX >> 20),
            None => format!("it threw {}", value.type_name()),
        },
    };
    // Whatever else was thrown while that was read.
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

/// Refuses what is no name: it is looked up by running it.
fn check_name(name: &str) -> Result<(), Fault> {
    let is_first = |c: char| c.is_alphabetic() || c == '_' || c == '$';
    let mut chars = name.chars();
    match chars.next().is_some_and(is_first) && chars.all(|c| is_first(c) || c.is_numeric()) {
        true => Ok(()),
        false => Err(Fault::Failed(format!("'{}' is no name of a function", shortened(name.to_owned())))),
    }
}
