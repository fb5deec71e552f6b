package test

import (
	"os"
	"slices"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
)

// unitSettings is the [Service] section of the unit of systemd, by key.
func unitSettings(t *testing.T) map[string][]string {
	t.Helper()
	file, err := os.Open("../../../deploy/systemd/microlet.service")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	options, err := unit.DeserializeOptions(file)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string][]string{}
	for _, o := range options {
		if o.Section == "Service" {
			settings[o.Name] = append(settings[o.Name], o.Value)
		}
	}
	return settings
}

func TestUnit(t *testing.T) {
	settings := unitSettings(t)
	for key, want := range map[string]string{
		"Type": "notify", "NotifyAccess": "main", "Restart": "always",
		// A stop ends the agent and leaves the pods to the runtime.
		"KillMode": "mixed",
		// A crash leaves no core file, a service's end for lack of memory is not the unit's.
		"LimitCORE": "0", "OOMPolicy": "continue", "UMask": "0022", "TasksMax": "4096", "OOMScoreAdjust": "-999",
		"MountFlags": "shared",
	} {
		if got := settings[key]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// systemd gives all that is in such a folder to the unit's user when the unit starts again.
	if got, is := settings["RuntimeDirectory"]; is {
		t.Errorf("RuntimeDirectory=%q takes their credentials from the services", got)
	}
	// With these volumes do not reach their containers, or have no set-group-ID bit for their fsGroup.
	for _, key := range []string{
		"PrivateTmp", "PrivateDevices", "PrivateMounts", "ProtectSystem", "ProtectHome", "ProtectKernelTunables",
		"ProtectKernelModules",
		"ProtectKernelLogs", "ProtectControlGroups", "ProtectProc", "ReadOnlyPaths", "ReadWritePaths",
		"InaccessiblePaths", "BindPaths",
		"TemporaryFileSystem", "RootDirectory", "RestrictSUIDSGID", "User", "DynamicUser",
	} {
		if got, is := settings[key]; is {
			t.Errorf("%s=%q breaks volumes", key, got)
		}
	}
}
