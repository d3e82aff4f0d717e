//! NCCL on burn's tensors: their addresses, a stream of our own, and the order of things.
//!
//! A tensor's kernels run on a stream of burn's that cannot be had. So before NCCL may read it, this thread (never the one that computes) waits until
//! they are done, and after that until NCCL is, before the sum is passed on.

use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{DType, Device, Int, Tensor};
use burn_dispatch::backends::Cube;
use cubecl_cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use cudarc::driver::{CudaContext, CudaStream, DriverError};

use super::communicator::{Communicator, Summand};
use super::library::{Nccl, UniqueId};
use super::{DeviceSums, NcclError, shared};
use crate::collective::{Collective, CollectiveError};
use crate::cube::DeviceTensor;
use crate::device::DeviceName;

/// The memory handle of burn's CUDA backend; its type has no name outside.
type Server = <CudaRuntime as Runtime>::Server;

/// NCCL between the ranks' GPUs.
#[derive(Debug)]
struct NcclSums {
    communicator: Communicator,
    stream: Arc<CudaStream>,
    device: Device,
}

pub(super) fn join(
    collective: &mut dyn Collective,
    name: DeviceName,
    device: &Device,
    timeout: Duration,
) -> Result<Result<Box<dyn DeviceSums>, NcclError>, CollectiveError> {
    let DeviceName::Cuda(index) = name else { return Ok(Err(NcclError::Device(name))) };
    let prepared = Nccl::load().and_then(|nccl| Ok((Arc::new(nccl), open(index)?)));
    let (nccl, (stream, uuid)) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Err(error)),
    };
    let uuids = collective.all_gather(&uuid)?;
    if let Some(error) = shared(uuids.iter().map(|uuid| uuid.bytes())) {
        return Ok(Err(error));
    }
    let (rank, world) = (collective.rank(), collective.world());
    let none = UniqueId { internal: [0; 128] };
    let id = match rank {
        0 => nccl.unique_id(),
        _ => Ok(none),
    };
    let id = match id {
        Ok(id) => id,
        Err(error) => return Ok(Err(error)),
    };
    let told = collective.broadcast(0, bytemuck::bytes_of(&id))?;
    let Ok(id) = bytemuck::try_pod_read_unaligned::<UniqueId>(told.bytes()) else {
        let what = format!("{} bytes are no identity of NCCL", told.bytes().len());
        return Err(CollectiveError::Malformed { rank: 0, what });
    };
    let joined = Communicator::join(nccl, id, rank, world, timeout);
    Ok(joined.map(|communicator| {
        let sums: Box<dyn DeviceSums> = Box::new(NcclSums { communicator, stream, device: device.clone() });
        sums
    }))
}

/// A stream of the GPU, whose context is then current on this thread, and which GPU it is. burn uses the same context.
fn open(index: usize) -> Result<(Arc<CudaStream>, [u8; 16]), NcclError> {
    let failed = |what| move |error: DriverError| NcclError::Driver { what, message: error.to_string() };
    let context = CudaContext::new(index).map_err(failed("open the device"))?;
    let uuid = context.uuid().map_err(failed("identify the device"))?;
    let stream = context.new_stream().map_err(failed("make a stream"))?;
    Ok((stream, uuid.bytes.map(|byte| byte as u8)))
}

impl DeviceSums for NcclSums {
    fn all_reduce(
        &mut self,
        mine: Tensor<1>,
        collective: &mut dyn Collective,
    ) -> Result<Tensor<1>, CollectiveError> {
        let (count, sum) = (mine.dims()[0], mine.zeros_like());
        let primitive = |tensor: Tensor<1>| tensor.try_into_primitive::<Cube>();
        let both = [mine, sum.clone()].map(primitive);
        self.together(both, (count, Summand::Float), collective)?;
        Ok(sum)
    }

    fn all_reduce_whole(
        &mut self,
        mine: Tensor<1, Int>,
        collective: &mut dyn Collective,
    ) -> Result<Tensor<1, Int>, CollectiveError> {
        let (count, sum) = (mine.dims()[0] / 2, mine.zeros_like());
        let primitive = |tensor: Tensor<1, Int>| tensor.try_into_primitive::<Cube>();
        let both = [mine, sum.clone()].map(primitive);
        self.together(both, (count, Summand::Whole), collective)?;
        Ok(sum)
    }
}

impl NcclSums {
    /// Adds up with the other ranks, which do the same.
    fn together<E: Debug>(
        &mut self,
        tensors: [Result<DeviceTensor, E>; 2],
        numbers: (usize, Summand),
        collective: &mut dyn Collective,
    ) -> Result<(), CollectiveError> {
        // Who is gone is known here, before anyone waits for it on a GPU.
        if let Err(error) = collective.barrier() {
            self.communicator.give_up();
            return Err(error);
        }
        self.sum(tensors, numbers).map_err(|error| {
            // The collective knows who is gone, or late; if no rank is, this rank's fault is its own.
            let named = collective.barrier().err();
            named.unwrap_or_else(|| CollectiveError::Aborted {
                rank: collective.rank(),
                reason: error.to_string(),
            })
        })
    }

    fn sum<E: Debug>(
        &mut self,
        [mine, sum]: [Result<DeviceTensor, E>; 2],
        numbers: (usize, Summand),
    ) -> Result<(), NcclError> {
        let driver = |what| move |message: String| NcclError::Driver { what, message };
        let from = resource(mine, numbers).map_err(driver("find a tensor"))?;
        let to = resource(sum, numbers).map_err(driver("find a tensor"))?;
        // Finding them made this thread's stream of burn's wait for the kernels that fill them; this waits for it.
        self.device.sync().map_err(|error| driver("compute a gradient")(format!("{error:?}")))?;
        let (from_address, to_address) = (from.resource().ptr, to.resource().ptr);
        let stream = self.stream.cu_stream().cast::<c_void>();
        let context = self.stream.context();
        context.bind_to_thread().map_err(|error| driver("use the device")(error.to_string()))?;
        // SAFETY: both are as many numbers of this kind: contiguous, of 32 bits or of two times as many, which `resource` has checked. Their
        // memory is kept by `from` and `to` until this function returns, which is after the sum is done or the communicator given up;
        // no other code has `mine`, and none reads `sum` before. The stream is of the device that is current,
        // which the communicator was made for.
        unsafe { self.communicator.all_reduce(from_address, to_address, numbers, stream) }?;
        let done = self.stream.record_event(None);
        let done = done.map_err(|error| {
            // Before the memory goes that it may still read and write.
            self.communicator.give_up();
            driver("record an event")(error.to_string())
        })?;
        self.communicator
            .wait("add up", || done.try_is_complete().map_err(|error| driver("add up")(error.to_string())))?;
        drop((from, to));
        Ok(())
    }
}

type Resource = <<Server as cubecl_runtime::server::ServerStorage>::Storage as cubecl_runtime::storage::ComputeStorage>::Resource;

/// The memory of a tensor of such numbers, which stays where it is as long as this is there.
fn resource<E: Debug>(
    tensor: Result<DeviceTensor, E>,
    (count, summand): (usize, Summand),
) -> Result<cubecl_runtime::storage::ManagedResource<Resource>, String> {
    let tensor = tensor.map_err(|error| format!("{error:?}"))?;
    let fits = match summand {
        Summand::Float => tensor.dtype == DType::F32,
        Summand::Whole => matches!(tensor.dtype, DType::I32 | DType::U32),
    };
    if !fits || !tensor.is_contiguous() {
        return Err(format!("a tensor of {:?} for numbers one after the other: {summand:?}", tensor.dtype));
    }
    let found = tensor.client.get_resource::<Server>(tensor.handle.clone());
    let found = found.map_err(|error| format!("{error:?}"))?;
    let (bytes, expected) = (found.resource().size as usize, count * summand.bytes());
    if bytes < expected {
        return Err(format!("{bytes} bytes of memory for {expected}"));
    }
    Ok(found)
}
