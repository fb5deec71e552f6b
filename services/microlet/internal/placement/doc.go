// Package placement says which services of a node share a process.
//
// A placement is a partition of the services: groups that are separated by commas, with members that are joined by a
// plus sign. Each group is one process, and a service that no group names has a process of its own. Three placements
// have names.
//
// A process with several services has the privileges of all of them. Its user is one of theirs, and the other members'
// users have no process. So who checks a peer by its user has to know the placement: Roles is the table for that.
package placement
