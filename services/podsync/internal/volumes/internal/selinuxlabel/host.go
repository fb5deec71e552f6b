package selinuxlabel

import (
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	v1 "k8s.io/api/core/v1"
)

// Host is the SELinux of a machine.
type Host interface {
	// Enabled reports whether the kernel enforces or records labels.
	Enabled() bool
	// FileLabel returns the label of files that a container with these options may use. The policy of the machine has
	// what they leave out.
	FileLabel(o *v1.SELinuxOptions) (string, error)
}

// ThisHost returns the machine that this process runs on.
func ThisHost() Host { return thisHost{} }

type thisHost struct{}

func (thisHost) Enabled() bool { return selinux.GetEnabled() }

func (thisHost) FileLabel(o *v1.SELinuxOptions) (string, error) {
	process, file, err := label.InitLabels(arguments(o))
	if err != nil {
		return "", err
	}
	// It is the runtime that runs processes with it. Kept here, it would be taken forever.
	selinux.ReleaseLabel(process)
	return file, nil
}

// arguments are the options in the form that the library takes.
func arguments(o *v1.SELinuxOptions) []string {
	var list []string
	for _, part := range []struct{ name, value string }{
		{"user", o.User}, {"role", o.Role}, {"type", o.Type}, {"level", o.Level},
	} {
		if part.value != "" {
			list = append(list, part.name+":"+part.value)
		}
	}
	return list
}
