package criconfig

import "github.com/microlet/microlet/services/podsync/internal/pods/criconfig/internal/envfile"

// TwinEnvFile opens Parse of package envfile.
func TwinEnvFile(text, name string) (string, error) { return envfile.Parse(text, name) }
