// Package deviceplugin is a device plugin of the kubelet's API v1beta1 that does what a test asks for.
//
// A file, the Plan, says which devices it has, how healthy they are, and what becomes of its calls: they come late,
// never end, fail, have a wrong answer, or end the process. The plugin reads the file whenever it needs something of
// it, so that a test changes it while the plugin runs. The plugin writes each call to another file, a line of JSON at
// its begin and one at its end.
//
// As plugins in use do, it registers again when the agent has put another socket in the place of the one at which it
// registered. The program cmd/device-plugin runs it in a process of its own, which a test can stop and kill.
package deviceplugin
