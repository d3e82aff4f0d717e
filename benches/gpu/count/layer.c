// A Vulkan layer that counts what crosses between the host and a device, and what the device is given to do: for benches/gpu/count/run,
// and for the test that a step moves no parameters. Counts are written as JSON to the file that SHARDD_COUNT names, when the program ends.
//
// wgpu copies through buffers of its own that do nothing else, by which the two directions are told apart: those that are only read by
// copies go to the device, those that are only written by copies come from it.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define EXPORT __attribute__((visibility("default")))

static PFN_vkGetInstanceProcAddr instance_function;
static PFN_vkGetDeviceProcAddr device_function;
static VkDevice device;

static struct {
    atomic_ullong launches, submissions, uploads, upload_bytes, downloads, download_bytes;
} counts;

// The direction of each buffer, in a table of open addresses; a buffer's place is used again by the next of the same handle.
enum direction { NEITHER, TO_DEVICE, FROM_DEVICE };
enum { PLACES = 1 << 20 };
static struct {
    VkBuffer buffer;
    enum direction direction;
} buffers[PLACES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t place_of(VkBuffer buffer) {
    size_t place = (((uintptr_t)buffer >> 4) * 0x9e3779b97f4a7c15ull) >> 44;
    while (buffers[place].buffer && buffers[place].buffer != buffer) place = (place + 1) % PLACES;
    return place;
}

static enum direction direction_of(VkBuffer buffer) {
    pthread_mutex_lock(&lock);
    enum direction direction = buffers[place_of(buffer)].direction;
    pthread_mutex_unlock(&lock);
    return direction;
}

#define NEXT(name) ((PFN_##name)device_function(device, #name))

static VkResult create_buffer(VkDevice of, const VkBufferCreateInfo *info, const VkAllocationCallbacks *memory, VkBuffer *buffer) {
    VkResult result = NEXT(vkCreateBuffer)(of, info, memory, buffer);
    if (result != VK_SUCCESS) return result;
    enum direction direction = NEITHER;
    if (info->usage == VK_BUFFER_USAGE_TRANSFER_SRC_BIT) direction = TO_DEVICE;
    if (info->usage == VK_BUFFER_USAGE_TRANSFER_DST_BIT) direction = FROM_DEVICE;
    pthread_mutex_lock(&lock);
    size_t place = place_of(*buffer);
    buffers[place].buffer = *buffer;
    buffers[place].direction = direction;
    pthread_mutex_unlock(&lock);
    return result;
}

static void copy_buffer(VkCommandBuffer commands, VkBuffer from, VkBuffer to, uint32_t count, const VkBufferCopy *regions) {
    uint64_t bytes = 0;
    for (uint32_t region = 0; region < count; region++) bytes += regions[region].size;
    if (direction_of(from) == TO_DEVICE) {
        counts.uploads++;
        counts.upload_bytes += bytes;
    }
    if (direction_of(to) == FROM_DEVICE) {
        counts.downloads++;
        counts.download_bytes += bytes;
    }
    NEXT(vkCmdCopyBuffer)(commands, from, to, count, regions);
}

static void dispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
    counts.launches++;
    NEXT(vkCmdDispatch)(commands, x, y, z);
}

static void dispatch_indirect(VkCommandBuffer commands, VkBuffer buffer, VkDeviceSize offset) {
    counts.launches++;
    NEXT(vkCmdDispatchIndirect)(commands, buffer, offset);
}

static VkResult submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    counts.submissions++;
    return NEXT(vkQueueSubmit)(queue, count, infos, fence);
}

static void report(void) {
    const char *path = getenv("SHARDD_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file,
            "{\"launches\": %llu, \"submissions\": %llu, \"uploads\": %llu, \"upload_bytes\": %llu, \"downloads\": %llu, "
            "\"download_bytes\": %llu}\n",
            counts.launches, counts.submissions, counts.uploads, counts.upload_bytes, counts.downloads, counts.download_bytes);
    fclose(file);
}

// The loader hands each layer the functions of the next one in a chain of structures.
static VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *memory, VkDevice *made) {
    VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO))
        link = (VkLayerDeviceCreateInfo *)link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetInstanceProcAddr next = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    device_function = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateDevice)next(NULL, "vkCreateDevice"))(physical, info, memory, made);
    device = *made;
    return result;
}

static VkResult create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *memory, VkInstance *made) {
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO))
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    instance_function = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    static atomic_flag is_registered = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&is_registered)) atexit(report);
    return ((PFN_vkCreateInstance)instance_function(NULL, "vkCreateInstance"))(info, memory, made);
}

EXPORT PFN_vkVoidFunction count_device_function(VkDevice of, const char *name);
EXPORT PFN_vkVoidFunction count_instance_function(VkInstance of, const char *name);

#define OURS(wanted, function) \
    if (!strcmp(name, wanted)) return (PFN_vkVoidFunction)function

static PFN_vkVoidFunction our_device_function(const char *name) {
    OURS("vkCreateBuffer", create_buffer);
    OURS("vkCmdCopyBuffer", copy_buffer);
    OURS("vkCmdDispatch", dispatch);
    OURS("vkCmdDispatchIndirect", dispatch_indirect);
    OURS("vkQueueSubmit", submit);
    OURS("vkGetDeviceProcAddr", count_device_function);
    return NULL;
}

EXPORT PFN_vkVoidFunction count_device_function(VkDevice of, const char *name) {
    PFN_vkVoidFunction ours = our_device_function(name);
    return ours ? ours : device_function(of, name);
}

EXPORT PFN_vkVoidFunction count_instance_function(VkInstance of, const char *name) {
    OURS("vkGetInstanceProcAddr", count_instance_function);
    OURS("vkCreateInstance", create_instance);
    OURS("vkCreateDevice", create_device);
    PFN_vkVoidFunction ours = our_device_function(name);
    return ours ? ours : instance_function(of, name);
}
