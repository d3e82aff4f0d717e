//! Which device computes.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;
use thiserror::Error;

/// A device by name: `cpu`, or `cuda:N` in a build with the feature `cuda`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// burn's portable CPU backend.
    #[default]
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
}

/// A device this program cannot use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceError {
    /// Not a name of a device.
    #[error("no device is called {0:?}; give cpu or cuda:0")]
    Unknown(String),
    /// The program was built without it.
    #[error("this shardtrain has no CUDA; build it with `cargo build --features cuda` or give --device cpu")]
    NoCuda,
}

impl DeviceName {
    /// The device for tensors.
    ///
    /// # Errors
    /// [`DeviceError::NoCuda`] when the program was built without the feature.
    pub fn open(self) -> Result<Device, DeviceError> {
        match self {
            DeviceName::Cpu => Ok(Device::flex()),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(index) => Ok(Device::cuda(index)),
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(_) => Err(DeviceError::NoCuda),
        }
    }
}

impl DeviceName {
    /// What ranks of one training must have in common: not which of its devices a machine uses.
    pub fn kind(self) -> &'static str {
        match self {
            DeviceName::Cpu => "cpu",
            DeviceName::Cuda(_) => "cuda",
        }
    }
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceName, DeviceError> {
        let index = |digits: &str| digits.parse().map(DeviceName::Cuda).ok();
        match text.split_once(':') {
            None if text == "cpu" => Some(DeviceName::Cpu),
            None if text == "cuda" => Some(DeviceName::Cuda(0)),
            Some(("cuda", digits)) => index(digits),
            _ => None,
        }
        .ok_or_else(|| DeviceError::Unknown(text.to_owned()))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["cpu", "cuda:0", "cuda:7"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        for name in ["", "gpu", "cuda:", "cuda:x", "cpu:1"] {
            assert_eq!(name.parse::<DeviceName>(), Err(DeviceError::Unknown(name.to_owned())));
        }
    }
}
