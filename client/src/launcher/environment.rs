//! Variables of an environment, as numbers and addresses.

use super::PORT;
use crate::loader::RankError;

/// The variables of a process.
pub(super) struct Environment<'v> {
    variable: &'v dyn Fn(&str) -> Option<String>,
}

impl<'v> Environment<'v> {
    pub(super) fn new(variable: &'v dyn Fn(&str) -> Option<String>) -> Self {
        Environment { variable }
    }

    /// A variable that is set and not empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// A variable that has to be a whole number if it is set.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u32>, RankError> {
        let Some(value) = (self.variable)(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(RankError::NotANumber { name, value: value.chars().take(80).collect() }),
        }
    }

    /// MASTER_ADDR:MASTER_PORT, if one of them is set.
    pub(super) fn given_master(&self) -> Option<String> {
        let (host, port) = (self.text("MASTER_ADDR"), self.text("MASTER_PORT"));
        if host.is_none() && port.is_none() {
            return None;
        }
        Some(format!("{}:{}", host.as_deref().unwrap_or("127.0.0.1"), port.as_deref().unwrap_or(PORT)))
    }

    /// The same, with the launcher's host and port in place of a part that is not set. `None` without a host.
    pub(super) fn master(&self, host: Option<&str>, port: Option<&str>) -> Option<String> {
        let host = self.text("MASTER_ADDR").or_else(|| host.map(str::to_owned))?;
        let port = self.text("MASTER_PORT").or_else(|| port.map(str::to_owned));
        Some(format!("{host}:{}", port.as_deref().unwrap_or(PORT)))
    }
}
