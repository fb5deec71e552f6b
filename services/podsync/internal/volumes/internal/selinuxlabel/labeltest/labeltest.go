// Package labeltest has a machine with SELinux for tests.
package labeltest

import (
	"errors"

	v1 "k8s.io/api/core/v1"
)

// Host has SELinux and a policy like that of Fedora.
type Host struct{}

// Enabled is true.
func (Host) Enabled() bool { return true }

// FileLabel returns the label of files for the user and the level of the options. It knows no user "unknown_u".
func (Host) FileLabel(o *v1.SELinuxOptions) (string, error) {
	user := o.User
	switch user {
	case "":
		user = "system_u"
	case "unknown_u":
		return "", errors.New("unknown user")
	}
	return user + ":object_r:container_file_t:" + o.Level, nil
}
