//! Which device computes.

use std::fmt;
use std::str::FromStr;

use burn::tensor::{DType, Device, FloatDType};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A device by name: `cpu`, `cuda:N` in a build with the feature `cuda`, or `wgpu` in one with the feature `wgpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// burn's portable CPU backend.
    #[default]
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
    /// A device of Vulkan, Metal or DirectX 12.
    Wgpu(Adapter),
}

/// Which of the devices of Vulkan, Metal or DirectX 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// The fastest kind of GPU that there is: `wgpu`.
    Best,
    /// The discrete GPU of this number: `wgpu:N`.
    Discrete(usize),
    /// A device in software, such as Mesa's lavapipe, to try programs out: `wgpu:cpu`.
    Software,
}

/// A device this program cannot use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeviceError {
    /// Not a name of a device.
    #[error("no device is called {0:?}; give cpu, cuda:0, wgpu, wgpu:0 or wgpu:cpu")]
    Unknown(String),
    /// The program was built without it.
    #[error("this shardtrain has no CUDA; build it with `cargo build --features cuda` or give --device cpu")]
    NoCuda,
    /// The program was built without it.
    #[error("this shardtrain has no wgpu; build it with `cargo build --features wgpu` or give --device cpu")]
    NoWgpu,
    /// The machine has no such device.
    #[error(
        "there is no device {asked}: Vulkan, Metal or DirectX 12 find {found}; install the GPU's driver (on Linux, for wgpu:cpu, Mesa's lavapipe: mesa-vulkan-drivers), or give --device cpu"
    )]
    NoAdapter {
        /// The one asked for.
        asked: DeviceName,
        /// Those that there are.
        found: String,
    },
    /// The machine has no NVIDIA driver.
    #[error("no CUDA driver: libcuda.so.1 is not found; install NVIDIA's driver, or give --device cpu")]
    NoDriver,
    /// The driver cannot be used.
    #[error("the CUDA driver cannot be used: {0}")]
    Driver(String),
    /// The machine has no device of this number.
    #[error("there is no device cuda:{index}: the driver finds {count}")]
    NoDevice {
        /// The one asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The compiler of kernels at run time is missing.
    #[error(
        "CUDA's {what} not found; kernels are compiled while the program runs. Install the CUDA toolkit or pip's nvidia-cuda-nvrtc and nvidia-cuda-runtime, put the folder of libnvrtc.so into LD_LIBRARY_PATH and that of include/ into CUDA_PATH"
    )]
    NoCompiler {
        /// Which part of it.
        what: &'static str,
    },
    /// It does not compute in this precision.
    #[error("device {device} does not compute in {precision}; give --precision {}", precision.instead())]
    Precision {
        /// Which device.
        device: String,
        /// In what.
        precision: Precision,
    },
}

/// In how many bits forward and backward passes are computed. Weights, moments, sums of gradients, losses and statistics are of 32 bits
/// always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32.
    #[default]
    F32,
    /// 16, with the exponents of 32 (bfloat16), so that no gradient is too small for it.
    Bf16,
    /// 16 with eight times as fine steps, but the exponents of 2⁻¹⁴ to 2¹⁵ only: gradients are brought there by a
    /// [scale](crate::scaling::LossScale) that is found while training.
    F16,
}

impl Precision {
    /// Of tensors.
    pub(crate) fn dtype(self) -> FloatDType {
        match self {
            Precision::F32 => FloatDType::F32,
            Precision::Bf16 => FloatDType::BF16,
            Precision::F16 => FloatDType::F16,
        }
    }

    /// Of a number.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 | Precision::F16 => 2,
        }
    }

    /// The alternatives where a device cannot do it.
    fn instead(self) -> &'static str {
        match self {
            Precision::F16 => "bf16 or f32",
            Precision::Bf16 | Precision::F32 => "f32",
        }
    }

    /// Whether a device can do it.
    ///
    /// # Errors
    /// [`DeviceError::Precision`] if it cannot.
    pub fn check(self, device: &Device) -> Result<(), DeviceError> {
        if device.supports_dtype(DType::from(self.dtype())) {
            return Ok(());
        }
        Err(DeviceError::Precision { device: format!("{device:?}"), precision: self })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        match text {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            "f16" => Ok(Precision::F16),
            _ => Err(format!("no precision is called {text:?}; give f32, bf16 or f16")),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
        })
    }
}

impl DeviceName {
    /// The device for tensors.
    ///
    /// # Errors
    /// [`DeviceError::NoCuda`] and [`DeviceError::NoWgpu`] when the program was built without the feature, and the missing
    /// part when the machine cannot.
    pub fn open(self) -> Result<Device, DeviceError> {
        match self {
            DeviceName::Cpu => Ok(Device::flex()),
            #[cfg(feature = "cuda")]
            DeviceName::Cuda(index) => find(index).map(|()| Device::cuda(index)),
            #[cfg(not(feature = "cuda"))]
            DeviceName::Cuda(_) => Err(DeviceError::NoCuda),
            #[cfg(feature = "wgpu")]
            DeviceName::Wgpu(adapter) => adapter.open(),
            #[cfg(not(feature = "wgpu"))]
            DeviceName::Wgpu(_) => Err(DeviceError::NoWgpu),
        }
    }
}

#[cfg(feature = "wgpu")]
impl Adapter {
    /// The device, which burn would panic about later if there is none.
    fn open(self) -> Result<Device, DeviceError> {
        use burn::tensor::{DeviceKind, DeviceType};

        let found = Device::enumerate(DeviceType::Wgpu);
        let software = Device::wgpu(DeviceKind::Cpu);
        let device = match self {
            Adapter::Best => Device::wgpu(DeviceKind::DefaultDevice),
            Adapter::Discrete(index) => Device::wgpu(DeviceKind::DiscreteGpu(index)),
            Adapter::Software => software.clone(),
        };
        let is_there = match self {
            // A device in software is no GPU: who wants it names it.
            Adapter::Best => found.iter().any(|it| *it != software),
            Adapter::Discrete(_) | Adapter::Software => found.contains(&device),
        };
        if is_there {
            return Ok(device);
        }
        let names: Vec<String> = found.iter().map(|it| format!("{it:?}")).collect();
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(DeviceError::NoAdapter { asked: DeviceName::Wgpu(self), found })
    }
}

/// Whether a GPU and what its kernels are compiled with are there, which burn would panic about later.
///
/// Why `unsafe`: cudarc marks looking for a library so, because loading one runs its initialisers.
#[cfg(feature = "cuda")]
fn find(index: usize) -> Result<(), DeviceError> {
    use cudarc::driver::{DriverError, result};

    // SAFETY: it loads the driver's library, as the first call of the driver would.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    let failed = |error: DriverError| DeviceError::Driver(error.to_string());
    result::init().map_err(failed)?;
    let count = result::device::get_count().map_err(failed)? as usize;
    if index >= count {
        return Err(DeviceError::NoDevice { index, count });
    }
    // SAFETY: likewise of the compiler's library.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(DeviceError::NoCompiler { what: "libnvrtc.so is" });
    }
    let headers = cubecl_cuda::install::cuda_path().map(|path| path.join("include/cuda_fp16.h"));
    if !headers.is_some_and(|header| header.is_file()) {
        return Err(DeviceError::NoCompiler { what: "headers (include/cuda_fp16.h) are" });
    }
    Ok(())
}

impl DeviceName {
    /// The common facts that ranks of one training need: not which of its devices a machine uses.
    pub fn kind(self) -> &'static str {
        match self {
            DeviceName::Cpu => "cpu",
            DeviceName::Cuda(_) => "cuda",
            DeviceName::Wgpu(_) => "wgpu",
        }
    }
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceName, DeviceError> {
        match text.split_once(':') {
            None if text == "cpu" => Some(DeviceName::Cpu),
            None if text == "cuda" => Some(DeviceName::Cuda(0)),
            None if text == "wgpu" => Some(DeviceName::Wgpu(Adapter::Best)),
            Some(("cuda", digits)) => digits.parse().map(DeviceName::Cuda).ok(),
            Some(("wgpu", "cpu")) => Some(DeviceName::Wgpu(Adapter::Software)),
            Some(("wgpu", digits)) => {
                digits.parse().map(|index| DeviceName::Wgpu(Adapter::Discrete(index))).ok()
            }
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
            DeviceName::Wgpu(Adapter::Best) => f.write_str("wgpu"),
            DeviceName::Wgpu(Adapter::Discrete(index)) => write!(f, "wgpu:{index}"),
            DeviceName::Wgpu(Adapter::Software) => f.write_str("wgpu:cpu"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["cpu", "cuda:0", "cuda:7", "wgpu", "wgpu:0", "wgpu:3", "wgpu:cpu"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("fp16".parse::<Precision>().unwrap_err().contains("f32, bf16 or f16"));
        for name in ["", "gpu", "cuda:", "cuda:x", "cpu:1", "wgpu:", "wgpu:gpu"] {
            assert_eq!(name.parse::<DeviceName>(), Err(DeviceError::Unknown(name.to_owned())));
        }
    }

    #[test]
    fn a_device_that_lacks_a_precision_is_told_apart_with_another_to_take() {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            assert_eq!(precision.check(&Device::flex()), Ok(()), "the CPU computes in all of them");
        }
        let refusal = DeviceError::Precision { device: "cuda:0".to_owned(), precision: Precision::F16 };
        let said = refusal.to_string();
        assert_eq!(said, "device cuda:0 does not compute in f16; give --precision bf16 or f32");
    }
}
