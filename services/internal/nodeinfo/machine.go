package nodeinfo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Machine is what the node's status says of the machine. An empty field could not be read.
type Machine struct {
	MachineID string
	// SystemUUID is the firmware's. Only root may read it on most machines: an unprivileged service
	// gets it from podsync.
	SystemUUID string
	BootID     string
	Kernel     string
	OSImage    string
	// SwapBytes is the swap's size.
	SwapBytes int64
	// UserNamespace says that this process, and so the node agent, runs in a user namespace.
	UserNamespace bool
}

// Machine reads the machine's identity. What can be read is returned, and the error names the rest.
func (s Source) Machine() (Machine, error) {
	var m Machine
	var errs []error
	read := func(to *string, what string, files ...string) {
		var tried []error
		for _, file := range files {
			data, err := s.read(file)
			if err == nil {
				if *to = strings.Trim(string(data), " \t\n\x00"); *to != "" {
					return
				}
				err = fmt.Errorf("%s is empty", file)
			}
			tried = append(tried, err)
			if errors.Is(err, os.ErrPermission) {
				break // another file's value would be a different identity
			}
		}
		errs = append(errs, fmt.Errorf("read %s: %w", what, errors.Join(tried...)))
	}
	read(&m.MachineID, "machine id", "/etc/machine-id", "/var/lib/dbus/machine-id")
	read(&m.SystemUUID, "system uuid", "/sys/class/dmi/id/product_uuid",
		"/proc/device-tree/system-id", "/proc/device-tree/vm,uuid", "/etc/machine-id")
	read(&m.BootID, "boot id", "/proc/sys/kernel/random/boot_id")
	read(&m.Kernel, "kernel version", "/proc/sys/kernel/osrelease")
	var err error
	if m.OSImage, err = s.osImage(); err != nil {
		errs = append(errs, err)
	}
	if m.SwapBytes, err = s.meminfo("SwapTotal"); err != nil {
		errs = append(errs, err)
	}
	// A kernel without user namespaces has no such file.
	if users, err := s.read("/proc/self/uid_map"); err == nil {
		m.UserNamespace = strings.Join(strings.Fields(string(users)), " ") != allUsers
	}
	return m, errors.Join(errs...)
}

// allUsers is how the kernel maps the users of the first user namespace, each to itself; see user_namespaces(7).
const allUsers = "0 0 4294967295"

// osImage returns PRETTY_NAME of os-release(5), "Linux" when the file does not set it, as the
// specification says.
func (s Source) osImage() (string, error) {
	var first error
	for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := s.read(file)
		if err == nil {
			return prettyName(data), nil
		}
		if first == nil {
			first = err
		}
	}
	return "", fmt.Errorf("read operating system name: %w", first)
}

func prettyName(osRelease []byte) string {
	lines := bufio.NewScanner(bytes.NewReader(osRelease))
	for lines.Scan() {
		value, found := strings.CutPrefix(strings.TrimSpace(lines.Text()), "PRETTY_NAME=")
		if !found {
			continue
		}
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		} else {
			value = strings.Trim(value, `'"`)
		}
		if value != "" {
			return value
		}
	}
	return "Linux"
}
