//! The Jinja engine, set up as transformers sets up its own.

use std::collections::BTreeMap;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use thiserror::Error as ThisError;

use super::json::DEEPEST;
use super::{Now, Settings, json, marks, python, source};

/// Items that are looked at for a step of fuel.
const STEP_ITEMS: u64 = 8;
/// The name of the one template of an environment.
const NAME: &str = "chat_template";

/// What a template's function refuses; the source of the engine's error.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub(super) enum Refusal {
    #[error("{0}")]
    Raised(String),
    #[error("no date for {0}")]
    NoDate(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(ErrorKind::InvalidOperation, refusal.to_string()).with_source(refusal)
    }
}

/// A template in its environment.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    environment: Environment<'static>,
    pub(super) settings: Settings,
}

/// Why a text was not made.
#[derive(Debug)]
pub(super) enum Failure {
    /// It is longer than the limit.
    Output,
    Engine(Error),
}

impl Engine {
    /// For the text of a template.
    ///
    /// # Errors
    /// The engine's, for a template that is no Jinja.
    pub(super) fn new(text: String, settings: Settings) -> Result<Self, Error> {
        Ok(Self { environment: environment(text, &settings)?, settings })
    }

    /// The same with names in its errors, for which it takes more time.
    pub(super) fn with_names(&self) -> Self {
        let mut named = self.clone();
        named.environment.set_debug(true);
        named
    }

    /// The template's text for these variables.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) fn evaluate(&self, variables: &BTreeMap<String, Value>) -> Result<String, Failure> {
        let mut output = Output { bytes: Vec::new(), limit: self.settings.output_bytes, is_full: false };
        let template = self.environment.get_template(NAME).map_err(Failure::Engine)?;
        let result = template.render_captured_to(Value::from(variables.clone()), &mut output);
        if output.is_full {
            return Err(Failure::Output);
        }
        result.map_err(Failure::Engine)?;
        Ok(String::from_utf8_lossy(&output.bytes).into_owned())
    }
}

fn environment(text: String, settings: &Settings) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.set_fuel(Some(settings.fuel));
    if settings.strict {
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    }
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", python::trim);
    environment.add_filter(source::LOOP, python::looped);
    environment.add_filter(source::KEPT, kept);
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("sequence", python::is_sequence);
    environment.add_filter(source::FILTER, |text: &str, marks: &str| marks::mark(text, marks));
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Refusal::Raised(message.to_string()).into())
    });
    environment.add_template_owned(NAME, text)?;
    Ok(environment)
}

/// The filter of a value for a namespace.
///
/// # Errors
/// If it has more than [`DEEPEST`] levels, and if the fuel does not suffice to look at all of it.
fn kept(state: &State, value: Value) -> Result<Value, Error> {
    check_levels(state, &value, 0, &mut 0)?;
    Ok(value)
}

fn check_levels(state: &State, value: &Value, level: usize, items: &mut u64) -> Result<(), Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    if level == DEEPEST {
        let reason = format!("a namespace holds values of {DEEPEST} levels at most");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter()? {
        *items += 1;
        if items.is_multiple_of(STEP_ITEMS) {
            state.consume_fuel(1)?;
        }
        let item = if is_map { value.get_item(&item)? } else { item };
        check_levels(state, &item, level + 1, items)?;
    }
    Ok(())
}

/// `strftime_now` of a rendering.
pub(super) fn clock(now: Option<Now>) -> Value {
    Value::from_function(move |format: &str| -> Result<String, Error> {
        let now = now.ok_or_else(|| Refusal::NoDate(format.to_owned()))?;
        now.format(format).map_err(|directive| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know {directive}"))
        })
    })
}

/// A text of limited length.
#[derive(Debug)]
struct Output {
    bytes: Vec<u8>,
    limit: usize,
    /// Whether more was written than the limit allows.
    is_full: bool,
}

impl io::Write for Output {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if part.len() > self.limit - self.bytes.len() {
            self.is_full = true;
            return Err(io::Error::other("the limit of output"));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
