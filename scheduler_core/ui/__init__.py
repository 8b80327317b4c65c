"""`gputopo ui`: the GPUs of a cluster as web pages.

model, node_rows, overview    the values of a page, from the cluster cache; pure
history                       the changes and samples of the last hour
html, overview_page, detail_pages, timeline    values as HTML and SVG; pure
where                         the form "where would N pods of M GPUs fit"
service, server, streams      watches, HTTP, server-sent events
"""
