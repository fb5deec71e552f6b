package images

// DevicePlugin is the image of upstream's sample device plugin, which specs of the node run in a pod.
const DevicePlugin = "registry.k8s.io/e2e-test-images/sample-device-plugin:1.8.0"

// BuildDevicePlugin returns the path of an OCI layout below cache that holds the image DevicePlugin, and makes it if it
// is not there. The program is the path of the static executable.
func BuildDevicePlugin(cache, program string) (string, error) {
	return buildPrograms(cache, "device-plugin", map[string]programImage{DevicePlugin: {path: program, base: nothing}})
}
