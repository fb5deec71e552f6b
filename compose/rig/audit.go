package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// auditPolicy has the API server log how a node fares as its client: its requests that ended, and those that could not
// be authenticated. Health checks are no such requests.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: [system:nodes], omitStages: [ResponseStarted]}
- {level: None, userGroups: [system:authenticated]}
- {level: None, nonResourceURLs: ["*"]}
- {level: Metadata}
`

func (i *Instance) auditPolicyFile() string { return filepath.Join(i.r.Dir, "etc/audit.yaml") }
func (i *Instance) auditLog() string        { return filepath.Join(i.r.Dir, "logs/audit.log") }

func (i *Instance) writeAuditPolicy() error {
	if err := os.MkdirAll(filepath.Dir(i.auditPolicyFile()), 0o755); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	if err := os.WriteFile(i.auditPolicyFile(), []byte(auditPolicy), 0o644); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	return nil
}

// AuditedRequest is a request that the API server has answered: one of the node, of which a watch is answered when it
// has ended, or of a caller whom the server did not know.
type AuditedRequest struct {
	Verb       string
	RequestURI string
	UserAgent  string
	// User is empty if the caller had credentials that are not valid.
	User struct{ Username string }
	// ObjectRef is what the request is about, if it is about an object.
	ObjectRef struct{ Resource, Subresource string }
	// ResponseStatus is what was answered.
	ResponseStatus struct{ Code int }
	// Began and Ended are by the server's clock.
	Began time.Time `json:"requestReceivedTimestamp"`
	Ended time.Time `json:"stageTimestamp"`
}

// AuditedRequests are those that ended after a time, in the order of their ends.
func (i *Instance) AuditedRequests(after time.Time) ([]AuditedRequest, error) {
	f, err := os.Open(i.auditLog())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the server makes it with the first request
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = f.Close() }()
	var all []AuditedRequest
	for lines := json.NewDecoder(f); ; {
		var r AuditedRequest
		switch err := lines.Decode(&r); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the server is writing the last line
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read the audit log: %w", err)
		case r.Ended.After(after):
			all = append(all, r)
		}
	}
}
