package rig

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAuditedRequests(t *testing.T) {
	i := &Instance{r: record{Dir: t.TempDir()}}
	if all, err := i.AuditedRequests(time.Time{}); err != nil || len(all) != 0 {
		t.Errorf("before the first request: %v, %v", all, err)
	}
	if err := os.MkdirAll(filepath.Dir(i.auditLog()), 0o755); err != nil {
		t.Fatal(err)
	}
	const log = `{"verb":"watch","requestURI":"/api/v1/pods?watch=true","user":{"username":"system:node:a"},` +
		`"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-11-24T12:00:00.000000Z",` +
		`"stageTimestamp":"2026-11-24T12:05:00.500000Z"}
{"verb":"get","requestURI":"/api/v1/nodes/a","userAgent":"microlet","user":{},"responseStatus":{"code":401},` +
		`"requestReceivedTimestamp":"2026-11-24T12:07:00.000000Z","stageTimestamp":"2026-11-24T12:07:00.000000Z"}
{"verb":"get","reque`
	if err := os.WriteFile(i.auditLog(), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := i.AuditedRequests(time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC))
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if r := all[0]; r.User.Username != "system:node:a" || r.Ended.Sub(r.Began) != 5*time.Minute+time.Second/2 {
		t.Errorf("the watch: %+v", r)
	}
	if r := all[1]; r.User.Username != "" || r.ResponseStatus.Code != 401 || r.UserAgent != "microlet" {
		t.Errorf("the refusal: %+v", r)
	}
	if later, err := i.AuditedRequests(all[0].Ended); err != nil || len(later) != 1 || later[0].Verb != "get" {
		t.Errorf("after the watch: %v, %v", later, err)
	}
	if err := os.WriteFile(i.auditLog(), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := i.AuditedRequests(time.Time{}); err == nil {
		t.Error("nonsense was read")
	}
}
