//! `libnccl.so.2`, loaded while the program runs, and of its functions those that are called.
//!
//! Why `unsafe`: another library's code can be had in no other way. Types and values are those of `nccl.h` 2.18, which later versions keep:
//! functions are never changed, and structures that are passed begin with their size and version.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use libloading::Library;

use super::NcclError;

/// `ncclResult_t`: 0 is success, 7 that a call continues in the background.
pub type NcclResult = c_int;

/// `ncclSuccess`.
pub const SUCCESS: NcclResult = 0;
/// `ncclInProgress`.
pub const IN_PROGRESS: NcclResult = 7;
/// `ncclInt64`.
pub const INT64: c_int = 4;
/// `ncclFloat32`.
pub const FLOAT32: c_int = 7;
/// `ncclSum`.
pub const SUM: c_int = 0;

/// 2.18.1, whose configuration of a communicator is [`Config`].
const OLDEST: c_int = 21_801;

/// `ncclUniqueId`: what ranks of one communicator have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub struct UniqueId {
    /// Known to NCCL alone.
    pub internal: [u8; 128],
}

/// `ncclConfig_t` of NCCL 2.18; a number that is not to be set is the smallest there is.
#[repr(C)]
#[derive(Debug)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once and continue in the background, where they can be asked about and given up.
    pub fn non_blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as u32,
            blocking: 0,
            cga_cluster_size: c_int::MIN,
            min_ctas: c_int::MIN,
            max_ctas: c_int::MIN,
            net_name: std::ptr::null(),
            split_share: c_int::MIN,
        }
    }
}

/// `ncclComm_t`.
pub type CommPointer = *mut c_void;

/// The functions, as `nccl.h` declares them. They are called in no longer than the library is loaded, which is as long as this is there.
#[derive(Debug)]
pub struct Nccl {
    pub(super) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> NcclResult,
    pub(super) comm_init_rank_config:
        unsafe extern "C" fn(*mut CommPointer, c_int, UniqueId, c_int, *mut Config) -> NcclResult,
    pub(super) all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        CommPointer,
        *mut c_void,
    ) -> NcclResult,
    pub(super) comm_get_async_error: unsafe extern "C" fn(CommPointer, *mut NcclResult) -> NcclResult,
    pub(super) comm_finalize: unsafe extern "C" fn(CommPointer) -> NcclResult,
    pub(super) comm_destroy: unsafe extern "C" fn(CommPointer) -> NcclResult,
    pub(super) comm_abort: unsafe extern "C" fn(CommPointer) -> NcclResult,
    get_error_string: unsafe extern "C" fn(NcclResult) -> *const c_char,
    version: c_int,
    path: String,
    _library: Library,
}

impl Nccl {
    /// The library that the environment variable SHARDD_NCCL names, or `libnccl.so.2` where the system looks for libraries.
    ///
    /// # Errors
    /// [`NcclError::NotFound`], [`NcclError::Symbol`] or [`NcclError::TooOld`].
    pub fn load() -> Result<Nccl, NcclError> {
        match std::env::var_os("SHARDD_NCCL").filter(|path| !path.is_empty()) {
            Some(path) => Nccl::load_from(&[Path::new(&path)]),
            None => Nccl::load_from(&[Path::new("libnccl.so.2"), Path::new("libnccl.so")]),
        }
    }

    /// The first of these that is a library.
    ///
    /// # Errors
    /// As [`Nccl::load`].
    ///
    /// # Panics
    /// If there are no paths.
    pub fn load_from(paths: &[&Path]) -> Result<Nccl, NcclError> {
        let mut first_error = None;
        for path in paths {
            // SAFETY: loading runs the library's initialisers. It is the one that the user of this program
            // put in the place of NCCL, as it is for every program that links with it; NCCL's own do nothing
            // but set up tables.
            match unsafe { Library::new(*path) } {
                Ok(library) => return Nccl::of(library, path.display().to_string()),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let tried = paths.iter().map(|path| path.display().to_string()).collect();
        Err(NcclError::NotFound { tried, source: first_error.expect("at least one path") })
    }

    fn of(library: Library, path: String) -> Result<Nccl, NcclError> {
        /// The function of this name.
        ///
        /// # Safety
        /// `T` is the type of the function that NCCL has by this name.
        unsafe fn symbol<T: Copy>(library: &Library, path: &str, name: &'static str) -> Result<T, NcclError> {
            // SAFETY: the caller's promise.
            let found = unsafe { library.get::<T>(name) };
            found.map(|symbol| *symbol).map_err(|_| NcclError::Symbol { path: path.to_owned(), symbol: name })
        }
        // SAFETY: `ncclResult_t ncclGetVersion(int*)`, as in nccl.h.
        let get_version: unsafe extern "C" fn(*mut c_int) -> NcclResult =
            unsafe { symbol(&library, &path, "ncclGetVersion")? };
        let mut version = 0;
        // SAFETY: `version` is an int that outlives the call.
        let result = unsafe { get_version(&raw mut version) };
        if result != SUCCESS || version < OLDEST {
            return Err(NcclError::TooOld { path, version });
        }
        Ok(Nccl {
            // SAFETY: `ncclResult_t ncclGetUniqueId(ncclUniqueId*)`.
            get_unique_id: unsafe { symbol(&library, &path, "ncclGetUniqueId")? },
            // SAFETY: `ncclResult_t ncclCommInitRankConfig(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*)`.
            comm_init_rank_config: unsafe { symbol(&library, &path, "ncclCommInitRankConfig")? },
            // SAFETY: `ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)`; C's
            // enumerations are ints here.
            all_reduce: unsafe { symbol(&library, &path, "ncclAllReduce")? },
            // SAFETY: `ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t*)`.
            comm_get_async_error: unsafe { symbol(&library, &path, "ncclCommGetAsyncError")? },
            // SAFETY: `ncclResult_t ncclCommFinalize(ncclComm_t)`.
            comm_finalize: unsafe { symbol(&library, &path, "ncclCommFinalize")? },
            // SAFETY: `ncclResult_t ncclCommDestroy(ncclComm_t)`.
            comm_destroy: unsafe { symbol(&library, &path, "ncclCommDestroy")? },
            // SAFETY: `ncclResult_t ncclCommAbort(ncclComm_t)`.
            comm_abort: unsafe { symbol(&library, &path, "ncclCommAbort")? },
            // SAFETY: `const char* ncclGetErrorString(ncclResult_t)`.
            get_error_string: unsafe { symbol(&library, &path, "ncclGetErrorString")? },
            version,
            path,
            _library: library,
        })
    }

    /// As NCCL counts them: 22809 is 2.28.9.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Where it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The meaning of a result.
    pub fn explain(&self, result: NcclResult) -> String {
        // SAFETY: it takes any int, and returns a constant of the library or null.
        let text = unsafe { (self.get_error_string)(result) };
        if text.is_null() {
            return format!("result {result}");
        }
        // SAFETY: not null, so a constant that ends with a zero, in a library that is loaded while this is there.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// An identity for a communicator, which one rank makes for all.
    ///
    /// # Errors
    /// When the network cannot be used: NCCL listens for the others.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId { internal: [0; 128] };
        // SAFETY: `id` has the size and form of ncclUniqueId and outlives the call.
        let result = unsafe { (self.get_unique_id)(&raw mut id) };
        if result != SUCCESS {
            return Err(NcclError::Call { what: "make an identity", message: self.explain(result) });
        }
        Ok(id)
    }
}

/// 22809 as 2.28.9.
pub(super) fn version_name(version: i32) -> String {
    // Before 2.9 there was one digit less.
    let (major, minor) = if version < 10_000 { (1_000, 100) } else { (10_000, 100) };
    format!("{}.{}.{}", version / major, version % major / minor, version % minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_way_out() {
        let error = Nccl::load_from(&[Path::new("/nowhere/libnccl.so.2")]).unwrap_err();
        assert!(error.is_usage());
        let message = error.to_string();
        for word in ["/nowhere/libnccl.so.2", "LD_LIBRARY_PATH", "SHARDD_NCCL", "nvidia-nccl"] {
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn a_library_that_is_another_one_is_refused() {
        let message = Nccl::load_from(&[Path::new("libc.so.6")]).unwrap_err().to_string();
        assert!(message.contains("libc.so.6") && message.contains("ncclGetVersion"), "{message}");
    }

    #[test]
    fn where_there_is_an_nccl_it_says_its_version() {
        let Ok(nccl) = Nccl::load() else {
            eprintln!("skipped: no NCCL on this machine (SHARDD_NCCL names one)");
            return;
        };
        assert!(nccl.version() >= OLDEST, "{} of {}", nccl.version(), nccl.path());
        assert!(nccl.explain(4).contains("argument"), "{}", nccl.explain(4));
    }

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!([2_708, 21_801, 22_809].map(version_name), ["2.7.8", "2.18.1", "2.28.9"]);
    }

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<UniqueId>(), size_of::<Config>()), (128, 48));
    }
}
